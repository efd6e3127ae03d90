// The scrolled part of the page: it follows new text while its end is in view.

const NEAR_PX = 80; // this close to the end counts as the end

export class Scroll {
  #box = document.getElementById("scroll");
  #isFollowing = true;

  constructor(moved) {
    this.#box.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#box;
      this.#isFollowing = scrollHeight - scrollTop - clientHeight < NEAR_PX;
      moved();
    }, { passive: true });
    // Text is drawn a frame after it came, so the size is what to watch.
    new ResizeObserver(() => this.follow()).observe(document.getElementById("turns"));
  }

  /** Go to the end if the reader has not scrolled away from it. */
  follow() {
    if (this.#isFollowing) this.toEnd();
  }

  toEnd() {
    this.#isFollowing = true;
    this.#box.scrollTop = this.#box.scrollHeight;
  }
}
