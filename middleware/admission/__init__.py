"""Admission: a claim is made and its answer weighed (`Admission`), an attempt runs under its lease, its outcome is recorded."""
