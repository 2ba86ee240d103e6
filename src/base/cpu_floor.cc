// Compiled for the baseline of x86-64 and by itself, since it must run where the rest cannot. For the same
// reason it uses nothing of the C++ library: the linker could keep a copy of an inline function that another
// source was compiled with.
#include "base/cpu_floor.h"

#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvasir {
namespace {

struct Feature {
  const char* name;  // as /proc/cpuinfo has it
  uint32_t CpuidWords::*word;
  int bit;
};

constexpr Feature kFloor[] = {{"sse3", &CpuidWords::basic, 0},      {"ssse3", &CpuidWords::basic, 9},
                              {"cx16", &CpuidWords::basic, 13},     {"sse4_1", &CpuidWords::basic, 19},
                              {"sse4_2", &CpuidWords::basic, 20},   {"popcnt", &CpuidWords::basic, 23},
                              {"lahf_lm", &CpuidWords::extended, 0}};

void say(const char* text, size_t length) {
  while (length > 0) {
    const ssize_t written = write(STDERR_FILENO, text, length);
    if (written <= 0) return;
    text += written;
    length -= static_cast<size_t>(written);
  }
}

void say(const char* text) {
  say(text, strlen(text));
}

#if defined(__x86_64__)
// The lowest priority that programs may take, so it runs before constructors that have none.
__attribute__((constructor(101))) void check_this_cpu() {
  CpuidWords words{};
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) words.basic = c;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) words.extended = c;
  require_cpu_floor(words);
}
#endif

}  // namespace

size_t missing_cpu_features(const CpuidWords& words, char* out, size_t size) {
  size_t length = 0;
  for (const Feature& feature : kFloor) {
    if ((words.*feature.word >> feature.bit) & 1u) continue;
    const size_t name = strlen(feature.name), space = length > 0 ? 1 : 0;
    if (length + space + name >= size) continue;
    if (space) out[length] = ' ';
    memcpy(out + length + space, feature.name, name);
    length += space + name;
  }
  out[length] = '\0';
  return length;
}

void require_cpu_floor(const CpuidWords& words) {
  char missing[128];
  const size_t length = missing_cpu_features(words, missing, sizeof missing);
  if (length == 0) return;
  say("kvasir: this CPU lacks ");
  say(missing, length);
  say(": Kvasir needs the level x86-64-v2 (Intel since 2009, AMD since 2011; in a virtual machine, choose a "
      "CPU model that "
      "has it, such as the host's)\n");
  _exit(1);
}

}  // namespace kvasir
