"""One module per rule of the workflow: parse the arguments, call the library, write the manifest."""
