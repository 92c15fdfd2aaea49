#include "bindings/attention_arguments.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "bindings/packing_numbers.h"
#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"

namespace longspan {
namespace {

void check_shapes(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMV,
                  const at::Tensor& sinks_N) {
  const auto fail = [&](const char* limit) {
    throw UserError(fmt::format("attention: q {}, k {}, v {}: {}", q_TNH.sizes(), k_TMH.sizes(),
                                v_TMV.sizes(), limit));
  };
  if (q_TNH.dim() != 3 || k_TMH.dim() != 3 || v_TMV.dim() != 3) {
    fail("each must be [tokens, heads, elements]");
  }
  if (q_TNH.numel() == 0 || k_TMH.numel() == 0 || v_TMV.numel() == 0) {
    fail("each must have at least one token, head and element");
  }
  if (k_TMH.size(0) != q_TNH.size(0) || v_TMV.size(0) != q_TNH.size(0)) {
    fail("all must have the same tokens");
  }
  if (v_TMV.size(1) != k_TMH.size(1) || q_TNH.size(1) % k_TMH.size(1) != 0) {
    fail("k and v must have the same heads, whose number divides the heads of q");
  }
  if (k_TMH.size(2) != q_TNH.size(2)) fail("q and k must have the same elements of a head");
  for (const at::Tensor& x : {k_TMH, v_TMV}) {
    if (x.scalar_type() != q_TNH.scalar_type() || x.device() != q_TNH.device()) {
      fail("all must have the same dtype and device");
    }
  }
  if (sinks_N.defined() && (sinks_N.dim() != 1 || sinks_N.size(0) != q_TNH.size(1))) {
    throw UserError(fmt::format("attention: sinks {} must be one number for each of {} heads",
                                sinks_N.sizes(), q_TNH.size(1)));
  }
}

void check_limits(double scale, std::optional<int64_t> window, std::optional<double> softcap) {
  if (!(scale > 0 && std::isfinite(scale))) {
    throw UserError(fmt::format(
        "attention: scale is {}, and must be positive and finite; None: 1 / sqrt(elements)",
        scale));
  }
  if (window && *window < 1) {
    throw UserError(fmt::format(
        "attention: window is {}, and must be at least 1, the token itself; None: all keys",
        *window));
  }
  if (softcap && !(*softcap > 0 && std::isfinite(*softcap))) {
    throw UserError(fmt::format(
        "attention: softcap is {}, and must be positive and finite; None: no softcap", *softcap));
  }
}

template <typename Number>
std::string number_or_none(const std::optional<Number>& number) {
  return number ? fmt::format("{}", *number) : "none";
}

}  // namespace

void check_arguments(const AttentionArguments& call) {
  check_shapes(call.q_TNH, call.k_TMH, call.v_TMV, call.sinks_N);
  check_limits(call.scale, call.window, call.softcap);
}

std::string text_of(const AttentionArguments& call) {
  std::string row = "one document";
  if (call.documents) {
    const std::vector<int64_t> numbers = numbers_of_packing(packing_of_numbers(*call.documents));
    row = fmt::format("documents {:x}", fnv1a(fmt::format("{}", fmt::join(numbers, " "))));
  }
  return fmt::format(
      "attends with q {}, v {} of {}, {}, mode {} {}, scale {}, window {}, softcap {}, {} sinks",
      call.q_TNH.sizes(), call.v_TMV.sizes(), c10::toString(call.q_TNH.scalar_type()), row,
      call.method, call.degrees, call.scale, number_or_none(call.window),
      number_or_none(call.softcap), call.sinks_N.defined() ? "with" : "without");
}

}  // namespace longspan
