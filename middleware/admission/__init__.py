"""Admission: claims a record and decides by the answer (`Enforcer`), runs the attempt under its lease, records its outcome."""
