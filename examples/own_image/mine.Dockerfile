ARG BASE
FROM $BASE
RUN pip install --no-cache-dir "lab[analysis,workload]"
