"""Pure judgement: numbers in, verdicts out. No I/O, no thread, no clock of its own."""
