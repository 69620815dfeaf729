"""Another configuration without a stop: read anew, prepared in every process, and put in place in all of them or in none."""
