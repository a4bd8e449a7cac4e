"""One file a ceiling; together they make the machine profile."""
