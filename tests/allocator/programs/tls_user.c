/* One of many libraries that each take 64 bytes of thread-local storage. */
__thread char room[64] __attribute__((tls_model("global-dynamic")));
char* tls_user_room(void) { return room; }
