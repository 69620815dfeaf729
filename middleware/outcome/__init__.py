"""A command's outcome: errors (`NotProcessed`, `OutcomeUnknown`), kept results, stored responses, problems."""
