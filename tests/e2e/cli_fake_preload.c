/* A preload library that does nothing, so that `terrace run` is tested apart from the real one. */
int terrace_fake_preload(void) { return 0; }
