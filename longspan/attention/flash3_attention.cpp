// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: numbers in a head.
#include "longspan/attention/flash3_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/attention/packed_calls.h"
#include "longspan/attention/refusals.h"
#include "longspan/cuda/driver.h"
#include "longspan/cuda/shared_library.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan::flash3 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNamespace = "flash_attn_3";
constexpr int kHopper = 90;
constexpr int64_t kMostHeadDim = 256, kHeadDimMultiple = 8;
/// The backward of larger head dims is not bit-reproducible.
constexpr int64_t kMostHeadDimDeterministic = 192;

/// Whether the kernel has refused a call that it should compute. From then on it is not called.
std::atomic<bool>& refused() {
  static std::atomic<bool> value = false;
  return value;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int64_t padded_head_dim(const AttentionSpec& spec) {
  const int64_t H = std::max(spec.key_dim, spec.value_dim);
  return (H + kHeadDimMultiple - 1) / kHeadDimMultiple * kHeadDimMultiple;
}

/// Returns the path of the package's extension in a folder of packages.
std::string extension_in(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "flash_attn_3", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("_C.") && name.ends_with(".so")) return entry.path().string();
  }
  return "";
}

}  // namespace

class Operator {
 public:
  using Given = std::pair<const char*, c10::IValue>;

  /// `optional`: arguments that an operator's schema may lack. Values given for missing ones are
  /// dropped.
  Operator(const std::string& name, std::vector<std::string> arguments,
           const std::vector<std::string>& optional = {})
      : handle_(found(name)) {
    const auto& schema = handle_.schema();
    for (const std::string& argument : arguments) {
      if (!schema.argumentIndexWithName(argument)) {
        throw std::runtime_error(fmt::format("its operator {} has no \"{}\"", name, argument));
      }
    }
    arguments.insert(arguments.end(), optional.begin(), optional.end());
    for (const c10::Argument& argument : schema.arguments()) {
      if (std::ranges::find(arguments, argument.name()) == arguments.end() &&
          !may_be_left(argument)) {
        throw std::runtime_error(fmt::format("its operator {} asks for \"{}\", which is not known",
                                             name, argument.name()));
      }
    }
  }

  bool has(const char* argument) const {
    return handle_.schema().argumentIndexWithName(argument).has_value();
  }

  /// `values`: the first is a tensor.
  c10::Stack call(std::initializer_list<Given> values) const {
    c10::Stack stack;
    for (const c10::Argument& argument : handle_.schema().arguments()) {
      const auto given = std::ranges::find_if(
          values, [&](const Given& value) { return argument.name() == value.first; });
      stack.push_back(given != values.end() ? given->second
                                            : argument.default_value().value_or(c10::IValue()));
    }
    const at::AutoDispatchBelowAutograd below;
    return with_second_try(values.begin()->second.toTensor().device(), [&] {
      c10::Stack results = stack;
      handle_.callBoxed(&results);
      return results;
    });
  }

 private:
  static c10::OperatorHandle found(const std::string& name) {
    const auto handle = c10::Dispatcher::singleton().findSchema({name, ""});
    if (!handle) throw std::runtime_error(fmt::format("it has no operator {}", name));
    return *handle;
  }

  /// Whether an argument may be left out. The oldest form has no defaults for arguments that may be
  /// None.
  static bool may_be_left(const c10::Argument& argument) {
    return argument.default_value() || argument.type()->kind() == c10::TypeKind::OptionalType;
  }

  c10::OperatorHandle handle_;
};

std::string find_in(const fs::path& packages) {
  if (const std::string path = extension_in(packages); !path.empty()) return path;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(packages, error)) {  // installed by setup.py
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("flash_attn_3-") || !name.ends_with(".egg")) continue;
    if (const std::string path = extension_in(entry.path()); !path.empty()) return path;
  }
  return "";
}

std::string installed() {
  const std::string torch = cuda::folder_of_torch();
  return torch.empty() ? "" : find_in(fs::path(torch).parent_path().parent_path());
}

Kernel::Kernel(const std::string& registered_as)
    : forward_(std::make_unique<Operator>(
          registered_as + "::fwd",
          std::vector<std::string>{"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q",
                                   "max_seqlen_k", "softmax_scale", "is_causal", "window_size_left",
                                   "window_size_right"},
          std::vector<std::string>{"num_splits"})),
      backward_(std::make_unique<Operator>(
          registered_as + "::bwd",
          std::vector<std::string>{"dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv",
                                   "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
                                   "softmax_scale", "is_causal", "window_size_left",
                                   "window_size_right"},
          std::vector<std::string>{"deterministic"})) {}

Kernel::~Kernel() = default;

KernelAbilities Kernel::abilities() const {
  return {.name = "FlashAttention 3", .window = true, .most_head_dim = kMostHeadDim};
}

bool Kernel::takes(at::ScalarType dtype, const AttentionSpec& spec, bool backward,
                   bool deterministic) const {
  const int64_t H = padded_head_dim(spec);
  // The kernel's softcap uses a tanh of eleven bits, which is too imprecise.
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || spec.softcap || H > kMostHeadDim) {
    return false;
  }
  return !backward || !deterministic ||
         (backward_->has("deterministic") && H <= kMostHeadDimDeterministic);
}

AttentionResult Kernel::forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionSpec& spec,
                                      const std::vector<Block>& blocks) const {
  return forward_packed(q, k, v, blocks, /*limits=*/{}, padded_head_dim(spec),
                        [&](const PackedCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) -> std::pair<at::Tensor, at::Tensor> {
                          const c10::Stack results =
                              forward_->call({{"q", q},
                                              {"k", k},
                                              {"v", v},
                                              {"cu_seqlens_q", call.queries.boundaries},
                                              {"cu_seqlens_k", call.keys.boundaries},
                                              {"max_seqlen_q", call.queries.longest},
                                              {"max_seqlen_k", call.keys.longest},
                                              {"softmax_scale", spec.scale},
                                              {"is_causal", call.causal},
                                              {"window_size_left", call.left().value_or(-1)},
                                              {"window_size_right", call.right().value_or(-1)},
                                              {"num_splits", 1}});
                          TORCH_CHECK(results.size() >= 2, "its operator fwd gives no lse");
                          return {results.at(0).toTensor(), results.at(1).toTensor()};
                        });
}

AttentionGradients Kernel::backward_blocks(const AttentionGradientInputs& inputs,
                                           const AttentionSpec& spec,
                                           const std::vector<Block>& blocks) const {
  return backward_packed(
      inputs, blocks, /*limits=*/{}, padded_head_dim(spec),
      [&](const PackedCall& call, const AttentionGradientInputs& packed) {
        const auto& [dout, q, k, v, out, lse] = packed;
        // The forms return different values, but all write dq, dk and dv.
        at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
        backward_->call({{"dout", dout},
                         {"q", q},
                         {"k", k},
                         {"v", v},
                         {"out", out},
                         {"softmax_lse", lse},
                         {"dq", dq},
                         {"dk", dk},
                         {"dv", dv},
                         {"cu_seqlens_q", call.queries.boundaries},
                         {"cu_seqlens_k", call.keys.boundaries},
                         {"max_seqlen_q", call.queries.longest},
                         {"max_seqlen_k", call.keys.longest},
                         {"softmax_scale", spec.scale},
                         {"is_causal", call.causal},
                         {"window_size_left", call.left().value_or(-1)},
                         {"window_size_right", call.right().value_or(-1)},
                         {"deterministic", at::globalContext().deterministicAlgorithms()}});
        return std::tuple(dq, dk, dv);
      });
}

std::unique_ptr<const Kernel> load(const std::string& path) {
  if (path.empty()) return nullptr;
  std::string reason;
  // As Python does when it imports torch: the extension needs libtorch.so but does not name its
  // folder.
  dlopen((cuda::folder_of_torch() + "/libtorch.so").c_str(), RTLD_LAZY | RTLD_LOCAL);
  // Lazy binding leaves the extension's one Python function unresolved. Only Python calls it.
  if (dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    reason = dlerror();
  } else {
    try {
      return std::make_unique<Kernel>(kNamespace);
    } catch (const std::runtime_error& error) {
      reason = error.what();
    }
  }
  defer_warning(fmt::format(
      "warning: FlashAttention 3 in {} cannot be used: {}. ATen's flash attention computes in its "
      "place.",
      path, first_line(reason)));
  return nullptr;
}

const BlockKernel* kernel_for(const at::Tensor& q, const AttentionSpec& spec, bool backward) {
  if (refused() || !q.is_cuda() || cuda::capability_or_0(q.device().index()) != kHopper) {
    return nullptr;
  }
  // Never destroyed, since other static objects may still call it at exit.
  static const Kernel* const kernel = load(installed()).release();
  const bool deterministic = at::globalContext().deterministicAlgorithms();
  return kernel != nullptr && kernel->takes(q.scalar_type(), spec, backward, deterministic)
             ? kernel
             : nullptr;
}

void give_up(const std::string& reason) {
  if (refused().exchange(true)) return;
  defer_warning(fmt::format(
      "warning: FlashAttention 3 refuses attention ({}). ATen's flash attention computes it "
      "instead.",
      first_line(reason)));
}

}  // namespace longspan::flash3
