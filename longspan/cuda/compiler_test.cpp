#include "longspan/cuda/compiler.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "longspan/cuda/kernel_sources.h"

namespace longspan::cuda {
namespace {

/// Null, with a message, where this machine has no NVRTC: CPU builds of torch have none.
const Compiler* compiler() {
  try {
    return &Compiler::get();
  } catch (const CompileError& error) {
    MESSAGE("not run: ", error.what());
    return nullptr;
  }
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

constexpr int kCapabilities[] = {80, 86, 89, 90, 100, 103, 120};

void check_part(const Compiler& nvrtc, Part part, int architecture) {
  INFO(std::string(name_of(part)));
  CAPTURE(architecture);
  CAPTURE(nvrtc.version());
  std::optional<Compiled> compiled;
  REQUIRE_NOTHROW(compiled = nvrtc.compile(source_of(part), name_of(part), architecture));
  CHECK(compiled->cubin.starts_with("\177ELF"));
  const int kernels = count(compiled->log, "Compiling entry function");
  CHECK(kernels > 0);
  CHECK(count(compiled->log, "bytes stack frame") == kernels);
  const int in_registers =
      count(compiled->log, " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
  CHECK(in_registers == kernels);
}

TEST_CASE("cuda kernels: every part compiles, and no kernel keeps registers in memory") {
  if (compiler() == nullptr) return;
  // Parts take seconds. The first compiler makes all parts for two architectures. Each other
  // architecture, with each compiler, gets every tenth part in turn, so that ten of the twelve
  // together get all. LONGSPAN_ALL_ARCHITECTURES: all parts (make test-kernels).
  const bool all = std::getenv("LONGSPAN_ALL_ARCHITECTURES") != nullptr;
  bool is_first = true;
  size_t turn = 0;
  for (const Compiler& nvrtc : Compiler::installed()) {
    for (const int capability : kCapabilities) {
      const bool whole = all || (is_first && (capability == 80 || capability == 90));
      int architecture = 0;
      try {
        architecture = nvrtc.architecture_for(capability);
      } catch (const CompileError& error) {
        MESSAGE("not run: ", error.what());
        continue;
      }
      for (size_t i = 0; i < std::size(kParts); ++i) {
        if (whole || i % 5 == turn % 5) check_part(nvrtc, kParts[i], architecture);
      }
      if (!whole) ++turn;
    }
    is_first = false;
  }
}

TEST_CASE("cuda kernels: NVRTC 12 and 13 compile, where tools/test-requirements.txt is installed") {
  if (compiler() == nullptr) return;
  std::vector<std::string> versions;
  for (const Compiler& nvrtc : Compiler::installed()) {
    versions.push_back(nvrtc.version().substr(0, 2));
    // Of 12.9 and newer.
    for (const int capability : kCapabilities) CHECK(nvrtc.architecture_for(capability) > 0);
  }
  if (versions.size() < 2) {
    MESSAGE("not run: there is only NVRTC ", versions[0]);
    return;
  }
  CHECK(versions == std::vector<std::string>{"13", "12"});
}

TEST_CASE("cuda kernels: what does not compile is one clear error") {
  const Compiler* const nvrtc = compiler();
  if (nvrtc == nullptr) return;
  const int newest = nvrtc->architecture_for(90);
  CHECK(newest == 90);
  CHECK_THROWS_WITH_AS(nvrtc->compile("int broken(", "broken.cu", newest),
                       doctest::Contains("broken.cu does not compile with NVRTC"), CompileError);
  CHECK_THROWS_WITH_AS(nvrtc->architecture_for(35), doctest::Contains("compute capability 3.5"),
                       CompileError);
  // A later GPU of the same major number runs an earlier one's code, but not the reverse.
  CHECK(nvrtc->architecture_for(88) >= 80);
  CHECK(nvrtc->architecture_for(88) <= 88);
  // Spills appear in the log, so the test above can fail.
  const std::string spills =
      "extern \"C\" __global__ void __launch_bounds__(1024, 2) k(float* x) {\n"
      "  float y[128];\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 128; ++i) y[i] = x[i * 1024 + threadIdx.x];\n"
      "  __syncthreads();\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 128; ++i) x[(i * i % 131) * 1024 + threadIdx.x] = y[i] * y[127 - i];\n"
      "}\n";
  CHECK(count(nvrtc->compile(spills, "spills.cu", newest).log, " 0 bytes spill stores") == 0);
}

}  // namespace
}  // namespace longspan::cuda
