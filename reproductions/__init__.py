"""The experiments of the papers behind Paceline: ``python -m reproductions lgc --quick``. Not in the wheel."""
