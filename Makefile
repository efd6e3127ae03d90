.PHONY: check format lint types test size

check: lint types test  ## the fast tests, lint and types in the current environment

format:
	ruff format .
	ruff check --fix .

lint:
	ruff format --check .
	ruff check .

types:
	mypy

test:
	pytest

size:  ## lines per folder
	@for folder in outrider/*/ benchmarks tests docs; do \
		printf "%6d %s\n" "$$(find $$folder -name '*.py' -o -name '*.md' | xargs cat | wc -l)" $$folder; \
	done
