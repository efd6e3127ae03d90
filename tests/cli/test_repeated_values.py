"""Flags with several values behind one name."""

from outrider.cli.repeated_values import repeat_flags


def test_the_flag_is_written_before_each_of_its_values():
    given = ["serve", "model", "--lora-modules", "a=1", "b=2", "--port", "3", "c=4"]
    flag = "--lora-modules"
    assert repeat_flags(given) == [*given[:2], flag, "a=1", flag, "b=2", *given[5:]]


def test_a_path_without_a_name_and_a_model_after_the_values_stay_what_they_are():
    given = ["serve", "--lora-paths", "/p", "q=2", "model"]
    assert repeat_flags(given) == ["serve", "--lora-paths", "/p", "--lora-paths", "q=2", "model"]
    assert repeat_flags(["serve", "--lora-paths"]) == ["serve", "--lora-paths"]


def test_objects_of_vllm_are_values_too():
    flag, one, two = "--lora-modules", '{"name": "a"}', '{"name": "b"}'
    assert repeat_flags(["serve", flag, one, two, "x"]) == ["serve", flag, one, flag, two, "x"]
