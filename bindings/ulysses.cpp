// The exchanges of Ulysses (arXiv 2309.14509) as operators: tokens for heads, and back
// (exchange_plan.h). Each is the other's backward.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/exchange_plan.h"
#include "bindings/registration.h"
#include "bindings/second_derivative.h"
#include "bindings/traced.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/process_group.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Ints = at::IntArrayRef;

/// `place`: the rank and the size of the group, on which the result's shape depends. A graph that
/// torch compiled for another place has another operator call, so that caches keep them apart.
const std::string& checked(const std::string& group, Ints place) {
  const ProcessGroupPlace is = group.empty() ? ProcessGroupPlace{0, 1} : place_in(group);
  if (place == Ints{is.rank, is.size}) return group;
  throw UserError(fmt::format("process group \"{}\": rank {} of {}, and the call is for {}", group,
                              is.rank, is.size, fmt::join(place, " of ")));
}

/// An exchange in flight. Holds the steps that are left.
struct Exchange : torch::CustomClassHolder {
  std::function<at::Tensor()> finish;
};
using ExchangePointer = c10::intrusive_ptr<Exchange>;

ExchangePointer started(std::function<at::Tensor()> finish) {
  auto exchange = c10::make_intrusive<Exchange>();
  exchange->finish = std::move(finish);
  return exchange;
}

/// Both record steps for autograd.
ExchangePointer start_to_heads_of(const at::Tensor& x, const ExchangePlan& plan) {
  const auto exchange = start_tokens_to_heads(rows_of(x, plan), plan.by_rank, plan.group);
  return started([exchange, plan, sizes = x.sizes().vec()] {
    return laid_out(with_copies(finish_tokens_to_heads(exchange).at(0), plan), sizes, plan);
  });
}

ExchangePointer start_to_seq_of(const at::Tensor& x, const ExchangePlan& plan) {
  const auto exchange =
      start_heads_to_tokens({without_copies(rows_of(x, plan), plan)}, plan.by_rank, plan.group,
                            plan.num_tokens / plan.group.size(), /*output_is_known=*/false);
  return started([exchange, plan, sizes = x.sizes().vec()] {
    return laid_out(finish_heads_to_tokens(exchange), sizes, plan);
  });
}

at::Tensor seq_to_heads(const at::Tensor& x, const std::string& group, Ints place, int64_t seq_dim,
                        int64_t head_dim, int64_t num_queries, int64_t timeout) {
  return for_python([&] {
    const at::NoGradGuard no_grad;
    return start_to_heads_of(
               x, plan_to_heads(x, checked(group, place), seq_dim, head_dim, num_queries, timeout))
        ->finish();
  });
}

at::Tensor heads_to_seq(const at::Tensor& x, const std::string& group, Ints place, int64_t head_dim,
                        int64_t seq_dim, std::optional<int64_t> num_heads, int64_t num_queries,
                        int64_t timeout) {
  return for_python([&] {
    const at::NoGradGuard no_grad;
    return start_to_seq_of(x, plan_to_seq(x, checked(group, place), head_dim, seq_dim, num_heads,
                                          num_queries, timeout))
        ->finish();
  });
}

/// The arguments of an exchange that are no tensors.
void save_exchange(AutogradContext* ctx, const std::string& group, Ints place, int64_t seq_dim,
                   int64_t head_dim, int64_t num_queries, int64_t timeout) {
  ctx->saved_data["group"] = group;
  ctx->saved_data["place"] = place.vec();
  ctx->saved_data["numbers"] = std::vector<int64_t>{seq_dim, head_dim, num_queries, timeout};
}

struct SeqToHeads : torch::autograd::Function<SeqToHeads> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::string& group,
                            Ints place, int64_t seq_dim, int64_t head_dim, int64_t num_queries,
                            int64_t timeout) {
    save_exchange(ctx, group, place, seq_dim, head_dim, num_queries, timeout);
    ctx->saved_data["heads"] = x.sym_size(head_dim).guard_int(__FILE__, __LINE__);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return operator_named<decltype(seq_to_heads)>("longspan::seq_to_heads")
        .call(x, group, place, seq_dim, head_dim, num_queries, timeout);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto numbers = ctx->saved_data["numbers"].toIntVector();
    return {operator_named<decltype(heads_to_seq)>("longspan::heads_to_seq")
                .call(gradients[0], ctx->saved_data["group"].toStringRef(),
                      ctx->saved_data["place"].toIntVector(), numbers[1], numbers[0],
                      ctx->saved_data["heads"].toInt(), numbers[2], numbers[3]),
            {},
            {},
            {},
            {},
            {},
            {}};
  }
};

struct HeadsToSeq : torch::autograd::Function<HeadsToSeq> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::string& group,
                            Ints place, int64_t head_dim, int64_t seq_dim,
                            std::optional<int64_t> num_heads, int64_t num_queries,
                            int64_t timeout) {
    save_exchange(ctx, group, place, seq_dim, head_dim, num_queries, timeout);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return operator_named<decltype(heads_to_seq)>("longspan::heads_to_seq")
        .call(x, group, place, head_dim, seq_dim, num_heads, num_queries, timeout);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto numbers = ctx->saved_data["numbers"].toIntVector();
    return {operator_named<decltype(seq_to_heads)>("longspan::seq_to_heads")
                .call(gradients[0], ctx->saved_data["group"].toStringRef(),
                      ctx->saved_data["place"].toIntVector(), numbers[0], numbers[1], numbers[2],
                      numbers[3]),
            {},
            {},
            {},
            {},
            {},
            {},
            {}};
  }
};

at::Tensor seq_to_heads_and_record(const at::Tensor& x, const std::string& group, Ints place,
                                   int64_t seq_dim, int64_t head_dim, int64_t num_queries,
                                   int64_t timeout) {
  return for_python([&] {
    return SeqToHeads::apply(x, group, place, dim_in(x, seq_dim, "seq_dim"),
                             dim_in(x, head_dim, "head_dim"), num_queries, timeout);
  });
}

at::Tensor heads_to_seq_and_record(const at::Tensor& x, const std::string& group, Ints place,
                                   int64_t head_dim, int64_t seq_dim,
                                   std::optional<int64_t> num_heads, int64_t num_queries,
                                   int64_t timeout) {
  return for_python([&] {
    return HeadsToSeq::apply(x, group, place, dim_in(x, head_dim, "head_dim"),
                             dim_in(x, seq_dim, "seq_dim"), num_heads, num_queries, timeout);
  });
}

ExchangePointer start_seq_to_heads(const at::Tensor& x, const std::string& group, Ints place,
                                   int64_t seq_dim, int64_t head_dim, int64_t num_queries,
                                   int64_t timeout) {
  return for_python([&] {
    if (is_traced(x)) {
      const at::Tensor y = operator_named<decltype(seq_to_heads)>("longspan::seq_to_heads")
                               .call(x, group, place, seq_dim, head_dim, num_queries, timeout);
      return started([y] { return y; });
    }
    return start_to_heads_of(
        x, plan_to_heads(x, checked(group, place), seq_dim, head_dim, num_queries, timeout));
  });
}

ExchangePointer start_heads_to_seq(const at::Tensor& x, const std::string& group, Ints place,
                                   int64_t head_dim, int64_t seq_dim,
                                   std::optional<int64_t> num_heads, int64_t timeout) {
  return for_python([&] {
    if (is_traced(x)) {
      const at::Tensor y = operator_named<decltype(heads_to_seq)>("longspan::heads_to_seq")
                               .call(x, group, place, head_dim, seq_dim, num_heads, 0, timeout);
      return started([y] { return y; });
    }
    return start_to_seq_of(
        x, plan_to_seq(x, checked(group, place), head_dim, seq_dim, num_heads, 0, timeout));
  });
}

at::Tensor wait(const ExchangePointer& exchange) {
  return for_python([&] {
    const auto finish = std::exchange(exchange->finish, nullptr);
    if (!finish) throw UserError("wait() was called before: call it once");
    return with_one_derivative(finish(), "an exchange in flight");
  });
}

/// Heads of a rank after seq_to_heads().
int64_t heads_here(Ints place, int64_t num_heads, int64_t num_queries) {
  return for_python([&] {
    TORCH_CHECK_VALUE(place.size() == 2, "place: a rank and a size");
    return head_shares(static_cast<int>(place[1]), num_heads, num_queries).at(place[0]).count();
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.class_<Exchange>("Exchange");
  library.def(
      "seq_to_heads(Tensor x, str group, int[] place, int seq_dim, int head_dim, int num_queries, "
      "int timeout) "
      "-> Tensor");
  library.def(
      "heads_to_seq(Tensor x, str group, int[] place, int head_dim, int seq_dim, int? num_heads, "
      "int num_queries, int timeout) -> Tensor");
  library.def(
      "start_seq_to_heads(Tensor x, str group, int[] place, int seq_dim, int head_dim, int "
      "num_queries, "
      "int timeout) -> __torch__.torch.classes.longspan.Exchange",
      start_seq_to_heads);
  library.def(
      "start_heads_to_seq(Tensor x, str group, int[] place, int head_dim, int seq_dim, int? "
      "num_heads, "
      "int timeout) -> __torch__.torch.classes.longspan.Exchange",
      start_heads_to_seq);
  library.def("wait(__torch__.torch.classes.longspan.Exchange exchange) -> Tensor", wait);
  library.def("heads_here(int[] place, int num_heads, int num_queries) -> int", heads_here);
}

TORCH_LIBRARY_IMPL(longspan, Autograd, library) {
  library.impl("seq_to_heads", seq_to_heads_and_record);
  library.impl("heads_to_seq", heads_to_seq_and_record);
}
TORCH_LIBRARY_IMPL(longspan, CPU, library) {
  library.impl("seq_to_heads", seq_to_heads);
  library.impl("heads_to_seq", heads_to_seq);
}
TORCH_LIBRARY_IMPL(longspan, CUDA, library) {
  library.impl("seq_to_heads", seq_to_heads);
  library.impl("heads_to_seq", heads_to_seq);
}

}  // namespace longspan
