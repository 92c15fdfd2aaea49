// FlashAttention 3 through the operators of its package (tests/flash_attn_3.cpp implements them for
// CPUs).
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>
#include <stdio.h>
#include <torch/library.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "longspan/attention/flash3_attention.h"
#include "longspan/testing/kernel_check.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/testing/tolerance.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan {
namespace {

using testing::KernelCase;
using testing::KernelShape;

/// The kernel in this build's folder of packages.
const flash3::Kernel& installed_kernel() {
  static const std::unique_ptr<const flash3::Kernel> kernel = [] {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    return flash3::load(flash3::find_in(program.parent_path() / "site-packages"));
  }();
  REQUIRE(kernel != nullptr);
  return *kernel;
}

const KernelShape kShape{6, 2, 64, 64};

TEST_CASE("flash attention 3: every kind of block is that of the plain softmax") {
  // Compared with a plain softmax, like the CPU's kernel. In bf16, weights or their gradients and
  // products with them are rounded, 2^-9 each at most, and some terms of a sum cancel.
  for (const KernelCase& one : testing::kernel_cases()) {
    testing::check_kernel(installed_kernel(), at::kCPU, at::kBFloat16, kShape, one, 4 * 0x1p-9);
    for (const KernelShape& shape : {kShape, {4, 4, 16, 16}, {5, 1, 20, 60}}) {
      testing::check_kernel(installed_kernel(), at::kCPU, at::kDouble, shape, one, 1e-12);
    }
  }
}

TEST_CASE("flash attention 3: in fp32 it is as near to fp64 as the kernel of CPUs") {
  for (const KernelCase& one : testing::kernel_cases()) {
    // The gradient of a softmax over one number is only rounding error.
    if (one.sees_itself_alone) continue;
    CAPTURE(one.name);
    const AttentionSpec spec = plain_attention(6, 2, 64);
    const at::Tensor q = at::randn({one.T, 6, 64}), k = at::randn({one.S, 2, 64}),
                     v = at::randn({one.S, 2, 64}), dout = at::randn({one.T, 6, 64});
    const auto exact = [](const at::Tensor& x) { return x.to(at::kDouble); };
    // As in a global softmax of which these blocks are a part.
    const auto results = [&](auto forward, auto backward, auto as) {
      AttentionResult result = forward(as(q), as(k), as(v));
      const at::Tensor out = result.out_TNH * 0.5, lse = result.lse_NT + 1;
      const AttentionGradients gradients = backward({as(dout), as(q), as(k), as(v), out, lse});
      const at::Tensor seen = result.lse_NT.isfinite();
      return std::vector<at::Tensor>{result.out_TNH, result.lse_NT.masked_select(seen),
                                     gradients.dq_TNH, gradients.dk_SMH, gradients.dv_SMH};
    };
    const auto by = [&](const BlockKernel& kernel, auto as) {
      return results(
          [&](const auto&... x) { return kernel.forward(x..., spec, one.blocks); },
          [&](const AttentionGradientInputs& x) { return kernel.backward(x, spec, one.blocks); },
          as);
    };
    const auto same = [](const at::Tensor& x) { return x; };
    const std::vector<at::Tensor> wanted = by(cpu_block_kernel(), exact),
                                  other = by(cpu_block_kernel(), same),
                                  ours = by(installed_kernel(), same);
    for (size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      CHECK(testing::relative_error(ours[i], wanted[i]) <=
            testing::allowed_error(other[i], wanted[i]));
    }
  }
}

TEST_CASE("flash attention 3: what it takes") {
  const flash3::Kernel& kernel = installed_kernel();
  const auto takes = [&](at::ScalarType dtype, int64_t key_dim, int64_t value_dim,
                         bool deterministic_backward = false) {
    AttentionSpec spec = plain_attention(2, 1, key_dim);
    spec.value_dim = value_dim;
    return kernel.takes(dtype, spec, /*backward=*/deterministic_backward, deterministic_backward);
  };
  CHECK(takes(at::kBFloat16, 128, 128));
  CHECK(takes(at::kHalf, 192, 128));
  CHECK(takes(at::kBFloat16, 250, 256));
  CHECK_FALSE(takes(at::kBFloat16, 264, 256));
  CHECK_FALSE(takes(at::kFloat, 128, 128));
  CHECK(takes(at::kBFloat16, 128, 192, /*deterministic_backward=*/true));
  CHECK_FALSE(takes(at::kBFloat16, 193, 128, /*deterministic_backward=*/true));
  AttentionSpec capped = plain_attention(2, 1, 64);
  capped.softcap = 30;
  CHECK_FALSE(kernel.takes(at::kBFloat16, capped, false, false));
  // The package has no kernel for tensors on a CPU.
  CHECK(flash3::kernel_for(at::empty({1, 2, 64}, at::kBFloat16), plain_attention(2, 1, 64),
                           false) == nullptr);
}

constexpr const char* kBackward =
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? "
    "dq, "
    "Tensor(dk!)? dk, Tensor(dv!)? dv, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? "
    "seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, float softmax_scale, bool "
    "is_causal, int window_size_left = -1, int window_size_right = -1, float softcap = 0.0, bool "
    "deterministic = False, int sm_margin = 0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)";
constexpr const char* kForward =
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new, Tensor? cu_seqlens_q, Tensor? "
    "cu_seqlens_k, int? max_seqlen_q, int? max_seqlen_k, float softmax_scale, bool is_causal, int "
    "window_size_left = -1, int window_size_right = -1, int num_splits = 0) -> (Tensor, Tensor)";

/// Calls that pass_on() refuses from here on.
int num_refused = 0;

/// Calls the installed operator of the same name with the arguments that it has.
void pass_on(const c10::OperatorHandle& here, c10::Stack* stack) {
  TORCH_CHECK(num_refused-- <= 0, "no cause");
  const std::string name = here.schema().name();
  const auto installed = c10::Dispatcher::singleton().findSchemaOrThrow(
      ("flash_attn_3" + name.substr(name.find(':'))).c_str(), "");
  c10::Stack arguments;
  for (const c10::Argument& argument : installed.schema().arguments()) {
    const auto index = here.schema().argumentIndexWithName(argument.name());
    arguments.push_back(index ? stack->at(*index) : *argument.default_value());
  }
  if (const auto added = here.schema().argumentIndexWithName("added")) {
    TORCH_CHECK(stack->at(*added).toInt() == 7, "an argument that nobody gives has its default");
  }
  installed.callBoxed(&arguments);
  arguments.resize(here.schema().returns().size());
  *stack = std::move(arguments);
}

/// Another version of the package under its own name, for the object's lifetime.
struct Version {
  torch::Library library;

  Version(const char* name, std::initializer_list<std::string> operators)
      : library(torch::Library::DEF, name, std::nullopt, __FILE__, __LINE__) {
    for (const std::string& schema : operators) {
      library.def(schema.c_str());
      library.impl(schema.substr(0, 3).c_str(),
                   torch::dispatch(c10::DispatchKey::CPU,
                                   torch::CppFunction::makeFromBoxedFunction<&pass_on>()));
    }
  }
};

std::string with(std::string text, const std::string& old, const std::string& now) {
  const size_t place = text.find(old);
  REQUIRE(place != std::string::npos);
  return text.replace(place, old.size(), now);
}

TEST_CASE("flash attention 3: arguments are bound by name, whatever was added or left out") {
  installed_kernel();
  const KernelCase one = testing::kernel_cases()[8];
  const auto check = [&](const char* name) {
    testing::check_kernel(flash3::Kernel(name), at::kCPU, at::kDouble, kShape, one, 1e-12);
  };
  {
    const Version oldest("flash_attn_3_oldest", {kForward, kBackward});
    check("flash_attn_3_oldest");
  }
  {
    const Version newer("flash_attn_3_newer",
                        {with(kForward, "int num_splits", "Tensor? sinks = None, int num_splits"),
                         with(kBackward, "float softcap", "int added = 7, float softcap")});
    check("flash_attn_3_newer");
  }
  const Version plain("flash_attn_3_plain", {with(kForward, ", int num_splits = 0", ""),
                                             with(kBackward, "bool deterministic = False, ", "")});
  const flash3::Kernel kernel("flash_attn_3_plain");
  CHECK(kernel.takes(at::kBFloat16, plain_attention(2, 1, 64), /*backward=*/true, false));
  CHECK(kernel.takes(at::kBFloat16, plain_attention(2, 1, 64), /*backward=*/false, true));
  CHECK_FALSE(kernel.takes(at::kBFloat16, plain_attention(2, 1, 64), /*backward=*/true, true));
}

TEST_CASE("flash attention 3: a call refused once is made again") {
  installed_kernel();
  const Version version("flash_attn_3_refusing", {kForward, kBackward});
  const flash3::Kernel kernel("flash_attn_3_refusing");
  const at::Tensor q = at::randn({5, 2, 8}), k = at::randn({5, 1, 8});
  const auto forward = [&] {
    return kernel.forward(q, k, k, plain_attention(2, 1, 8), {{0, 5, 0, 5, true}});
  };
  const AttentionResult wanted = forward();
  num_refused = 1;
  CHECK(at::equal(forward().out_TNH, wanted.out_TNH));
  num_refused = 2;
  CHECK_THROWS_AS(forward(), c10::Error);
}

TEST_CASE("flash attention 3: a form that is not known is named") {
  const auto refusal = [](std::initializer_list<std::string> operators) -> std::string {
    const Version version("flash_attn_3_unknown", operators);
    try {
      flash3::Kernel("flash_attn_3_unknown");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal({kForward, kBackward}).empty());
  CHECK(refusal({}) == "it has no operator flash_attn_3_unknown::fwd");
  CHECK(refusal({kForward}) == "it has no operator flash_attn_3_unknown::bwd");
  CHECK(refusal({with(kForward, "is_causal", "causal"), kBackward}) ==
        "its operator flash_attn_3_unknown::fwd has no \"is_causal\"");
  CHECK(refusal({kForward, with(kBackward, "Tensor dout", "Tensor rng_state, Tensor dout")}) ==
        "its operator flash_attn_3_unknown::bwd asks for \"rng_state\", which is not known");
}

TEST_CASE("flash attention 3: it is found beside torch, and one warning says why it is not used") {
  const testing::TemporaryFolder packages;
  CHECK(flash3::find_in(packages.path).empty());
  CHECK(flash3::find_in(packages / "missing").empty());
  packages.write("flash_attn_3/__init__.py", "");
  CHECK(flash3::find_in(packages.path).empty());
  const std::string egg =
      packages.write("flash_attn_3-3.0.0-py3.12.egg/flash_attn_3/_C.abi3.so", "no library");
  CHECK(flash3::find_in(packages.path) == egg);
  const std::string path = packages.write("flash_attn_3/_C.abi3.so", "no library");
  CHECK(flash3::find_in(packages.path) == path);

  take_deferred_warnings();
  CHECK(flash3::load("") == nullptr);
  CHECK(take_deferred_warnings().empty());
  CHECK(flash3::load(path) == nullptr);
  const std::vector<std::string> warnings = take_deferred_warnings();
  REQUIRE(warnings.size() == 1);
  const std::string& warning = warnings[0];
  CHECK(warning.starts_with("warning: FlashAttention 3 in " + path + " cannot be used: "));
  CHECK(warning.find("ATen's flash attention computes in its place.") != std::string::npos);
}

}  // namespace
}  // namespace longspan
