-- The database `prefect` is made from POSTGRES_DB; MLflow has its own beside it.
CREATE DATABASE mlflow;
