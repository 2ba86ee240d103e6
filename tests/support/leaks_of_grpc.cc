// For programs that use gRPC. Its resolver c-ares (1.18) keeps a name of 10 bytes of a channel that ends
// while it is resolved. The library has no symbols, so the whole of it is excused.
#if defined(KVASIR_SANITIZED)
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares.so";
}
#endif
