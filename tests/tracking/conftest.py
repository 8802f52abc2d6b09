"""An empty MLflow store for each test."""

import shutil

import pytest

from iha.tracking.mlflow import Experiment, database


@pytest.fixture(scope="session")
def database_file(tmp_path_factory):
    """An empty store, to be copied: MLflow's migrations take seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    Experiment(uri, "unused")
    return database(uri)


@pytest.fixture
def store(tmp_path, database_file):
    """Address of a store of the test's own, `tmp_path / "mlflow.db"`."""
    shutil.copy(database_file, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"
