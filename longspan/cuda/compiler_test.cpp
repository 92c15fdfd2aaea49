#include "longspan/cuda/compiler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>

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

TEST_CASE("cuda kernels: every part compiles, and no kernel keeps registers in memory") {
  const Compiler* const nvrtc = compiler();
  if (nvrtc == nullptr) return;
  for (const int capability : {80, 90}) {
    for (const Part part : kParts) {
      CAPTURE(name_of(part));
      CAPTURE(capability);
      std::optional<Compiled> compiled;
      REQUIRE_NOTHROW(compiled = nvrtc->compile(source_of(part), name_of(part),
                                                nvrtc->architecture_for(capability)));
      CHECK(compiled->cubin.starts_with("\177ELF"));
      const int kernels = count(compiled->log, "Compiling entry function");
      CHECK(kernels > 0);
      CHECK(count(compiled->log, "bytes stack frame") == kernels);
      CHECK(count(compiled->log,
                  " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == kernels);
    }
  }
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
