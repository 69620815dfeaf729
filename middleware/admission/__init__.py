"""Admission: claims a record and decides by the answer (`Admissions`), runs the attempt under its lease, records its outcome."""
