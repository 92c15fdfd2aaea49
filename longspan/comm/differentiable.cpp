#include "longspan/comm/differentiable.h"

#include <torch/csrc/autograd/custom_function.h>

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GroupState : torch::CustomClassHolder {
  Group group;
};

struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            c10::intrusive_ptr<GroupState> state) {
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    return state->group.all_gather(x).wait();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto state =
        c10::static_intrusive_pointer_cast<GroupState>(ctx->saved_data["state"].toCapsule());
    return {state->group.reduce_scatter(gradients[0]).wait(), {}};
  }
};

struct SumOver : torch::autograd::Function<SumOver> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            c10::intrusive_ptr<GroupState> state) {
    at::Tensor sum = x.clone();
    state->group.sum_(sum);
    return sum;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {gradients[0], {}};
  }
};

struct AllToAllRows : torch::autograd::Function<AllToAllRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::vector<int64_t>& send_rows,
                            const std::vector<int64_t>& recv_rows,
                            c10::intrusive_ptr<GroupState> state) {
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    ctx->saved_data["sent"] = send_rows;
    ctx->saved_data["received"] = recv_rows;
    return state->group.all_to_all_features(x, send_rows, recv_rows).wait();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto state =
        c10::static_intrusive_pointer_cast<GroupState>(ctx->saved_data["state"].toCapsule());
    return {state->group
                .all_to_all_features(gradients[0], ctx->saved_data["received"].toIntVector(),
                                     ctx->saved_data["sent"].toIntVector())
                .wait(),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor all_gather(const at::Tensor& x, const Group& group) {
  if (group.size() == 1) return x;
  auto state = c10::make_intrusive<GroupState>();
  state->group = group;
  return AllGather::apply(x, state);
}

at::Tensor sum_over(const at::Tensor& x, const Group& group) {
  if (group.size() == 1) return x;
  auto state = c10::make_intrusive<GroupState>();
  state->group = group;
  return SumOver::apply(x, state);
}

at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                           const std::vector<int64_t>& recv_rows, const Group& group) {
  if (group.size() == 1) return x;
  auto state = c10::make_intrusive<GroupState>();
  state->group = group;
  return AllToAllRows::apply(x, send_rows, recv_rows, state);
}

}  // namespace longspan
