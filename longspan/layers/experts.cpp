#include "longspan/layers/experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "longspan/kernels/expert_rows.h"
#include "longspan/kernels/gated_activation.h"
#include "longspan/layers/grouped_experts.h"
#include "longspan/memory/transfer.h"
#include "longspan/spec/expert_casts.h"

namespace longspan {
namespace {

/// Gives every trained parameter a gradient, of zeros where no row came.
void make_gradients(const ExpertMlp& expert) {
  for (const Linear* linear : expert.linears()) {
    for (const at::Tensor& parameter : linear->parameters()) {
      if (parameter.defined() && parameter.requires_grad()) gradient_of(parameter);
    }
  }
}

/// Parts of the working memory, each as large as gate x of all rows. Interleaved gate and up need
/// two more.
constexpr int64_t kForwardParts = 2, kBackwardParts = 4;

/// Returns two parts of the working memory, from `first` on, as one tensor for interleaved gate and
/// up; undefined for two matrices.
at::Tensor room_for_both(const ExpertMlp& expert, const at::Tensor& room, int64_t first,
                         int64_t num_rows) {
  if (!expert.takes_turns()) return {};
  const int64_t width = 2 * room.size(2);
  return room.narrow(0, first, 2).view({-1}).narrow(0, 0, num_rows * width).view({num_rows, width});
}

/// Returns the expert's output for its rows.
at::Tensor output_of(const ExpertMlp& expert, const GateActivation& activation,
                     const at::Tensor& x_RD, const at::Tensor& room) {
  const int64_t R = x_RD.size(0);
  at::Tensor gate_RI = room[0].narrow(0, 0, R), up_RI = room[1].narrow(0, 0, R);
  expert.gate_and_up_out(gate_RI, up_RI, x_RD, room_for_both(expert, room, kForwardParts, R));
  gated_out(activation, gate_RI, gate_RI, up_RI);
  return expert.down_proj.forward(gate_RI);
}

struct RowGradients {
  at::Tensor dx_RD, dweights_R;
};

/// Adds to the expert's gradients. Overwrites dout_RD, the gradient of the weighted rows.
RowGradients gradients_of(const ExpertMlp& expert, const GateActivation& activation,
                          const at::Tensor& x_RD, at::Tensor dout_RD, const at::Tensor& weights_R,
                          const at::Tensor& room) {
  const int64_t R = x_RD.size(0);
  const at::Tensor weights_R1 = weights_R.to(x_RD.scalar_type()).unsqueeze(1);
  const auto part = [&](int i) { return room[i].narrow(0, 0, R); };
  at::Tensor gate_RI = part(0), up_RI = part(1), dact_RI = part(3);
  const at::Tensor both_R2I = room_for_both(expert, room, kBackwardParts, R);
  expert.gate_and_up_out(gate_RI, up_RI, x_RD, both_R2I);
  const at::Tensor back_RI = part(2);  // gradient of act for weights of 1
  expert.down_proj.input_gradient_out(back_RI, dout_RD);
  at::mul_out(dact_RI, back_RI, weights_R1);
  gated_backward_(activation, gate_RI, up_RI, dact_RI);
  const auto &dgate_RI = gate_RI, &dup_RI = up_RI, &act_RI = dact_RI;
  RowGradients gradients{.dx_RD = {}, .dweights_R = row_dots(back_RI, act_RI)};
  if (const at::Tensor& bias_D = expert.down_proj.bias; bias_D.defined()) {
    gradients.dweights_R.add_(row_dots(dout_RD, bias_D.unsqueeze(0)));
  }
  dout_RD.mul_(weights_R1);
  expert.down_proj.add_gradients(dout_RD, act_RI);
  gradients.dx_RD = expert.gate_and_up_backward(dgate_RI, dup_RI, x_RD, both_R2I);
  return gradients;
}

int64_t most_of(const std::vector<int64_t>& counts) {
  return counts.empty() ? 0 : *std::ranges::max_element(counts);
}

/// Calls use(expert, begin, count) with the rows that have arrived for each expert.
template <typename Use>
void for_arrived(const std::vector<int64_t>& counts, Use&& use) {
  int64_t begin = 0;
  for (size_t number = 0; number < counts.size(); ++number) {
    use(number, begin, counts[number]);
    begin += counts[number];
  }
}

at::Tensor counts_on(at::Device device, const std::vector<int64_t>& counts) {
  return sent_to(at::tensor(counts, at::kLong), device);
}

/// sum_CD += the returned outputs of each row's experts, in the order in which the rows left, each
/// times its weight. Undefined weights are 1.
void add_returned_rows_(at::Tensor& sum_CD, const ExpertDispatch& sorted, const at::Tensor& y_RD,
                        const at::Tensor& weights_CK) {
  const int64_t C = sum_CD.size(0);
  if (C > 0 && grouped::have_kernels(y_RD.options()) && grouped::can_read(y_RD)) {
    const at::Tensor by_row = at::zeros_like(y_RD).index_copy_(0, sorted.places(), y_RD);
    grouped::combine_(sum_CD, by_row.view({C, y_RD.size(0) / C, y_RD.size(1)}),
                      weights_CK.defined() ? weights_CK.contiguous() : weights_CK);
    return;
  }
  at::Tensor weights_R;
  if (weights_CK.defined()) weights_R = weights_CK.reshape({-1}).index_select(0, sorted.places());
  sorted.for_each([&](size_t, int64_t first, int64_t R) {
    if (R == 0) return;
    add_weighted_rows_(sum_CD, sorted.rows().narrow(0, first, R), y_RD.narrow(0, first, R),
                       weights_R.defined() ? weights_R.narrow(0, first, R) : weights_R);
  });
}

}  // namespace

Experts::Experts(const MixtureOfExpertsSpec& spec, std::vector<ExpertMlp> weights,
                 ExpertExchange* exchange)
    : spec_(spec), weights_(std::move(weights)), exchange_(exchange) {}

std::vector<Linear*> Experts::linears() {
  std::vector<Linear*> all;
  for (ExpertMlp& expert : weights_) {
    for (Linear* linear : expert.linears()) all.push_back(linear);
  }
  return all;
}

void Experts::append_parameters_to(std::vector<at::Tensor>& parameters) const {
  for (const ExpertMlp& expert : weights_) append_parameters(parameters, expert.linears());
}

at::Tensor Experts::room_of(int64_t num_parts, int64_t num_rows,
                            const at::TensorOptions& options) const {
  return at::empty({num_parts + (spec_.stacked ? 2 : 0), num_rows, spec_.expert_size}, options);
}

// With an exchange, the number of arriving rows is not known yet.
at::Tensor Experts::forward_room(int64_t num_rows, const at::TensorOptions& options) const {
  if (grouped::have_kernels(options)) return {};
  return room_of(kForwardParts, are_exchanged() ? 0 : num_rows, options);
}

at::Tensor Experts::backward_room(int64_t num_rows, const at::TensorOptions& options) const {
  if (grouped::have_kernels(options)) return {};
  return room_of(kBackwardParts, are_exchanged() ? 0 : num_rows, options);
}

/// Returns the expert's layers in the dtype of computation, for these rows of the chunk at `begin`.
/// Arriving rows are undefined: adapters of experts have no dropout (spec/lora_spec).
ExpertMlp Experts::weights_for(size_t expert, const at::Tensor& rows_R, int64_t begin,
                               at::ScalarType dtype) const {
  ExpertMlp used =
      weights_[expert].cast_for_uses(dtype, rows_R.defined() ? rows_R + begin : rows_R);
  // As many rows as the router sends.
  for (Linear* linear : used.linears()) linear->shapes = GemmShapes::kVarying;
  return used;
}

bool Experts::can_be_grouped() const {
  return std::ranges::all_of(weights_.at(0).linears(), [](const Linear* linear) {
    return !linear->has_adapter() ||
           (linear->lora_a.size(0) % kGroupedNumbers == 0 && linear->dropout.p == 0);
  });
}

bool Experts::are_grouped(const at::Tensor& x) const {
  return x.size(0) > 0 && grouped::have_kernels(x.options()) && grouped::can_read(x) &&
         GroupedExperts::can_group(weights_);
}

void Experts::cast_for_pass(int64_t num_rows, const at::TensorOptions& options) {
  if (num_rows < expert_casts(spec_, /*hidden_size=*/0).num_tokens ||
      !grouped::have_kernels(options) || !GroupedExperts::can_group(weights_)) {
    return;
  }
  using Member = at::Tensor Linear::*;
  std::vector<std::pair<size_t, Member>> places;
  std::vector<std::vector<at::Tensor>> matrices;
  for (size_t number = 0; number < weights_[0].linears().size(); ++number) {
    for (const Member member : {&Linear::weight, &Linear::lora_a, &Linear::lora_b}) {
      const at::Tensor& first = weights_[0].linears()[number]->*member;
      if (!first.defined() || first.scalar_type() != at::kFloat) continue;
      places.emplace_back(number, member);
      std::vector<at::Tensor>& all = matrices.emplace_back();
      for (ExpertMlp& expert : weights_) {
        const Linear& linear = *expert.linears()[number];
        all.push_back(member == &Linear::lora_b ? linear.own_lora_b() : linear.*member);
      }
    }
  }
  const std::vector<std::vector<at::Tensor>> copies = grouped::cast_to_bf16(matrices);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [number, member] = places[i];
    for (size_t e = 0; e < weights_.size(); ++e) {
      Linear& linear = *weights_[e].linears()[number];
      if (!linear.cast_of) linear.cast_of = std::make_shared<const Linear>(linear);
      linear.*member = copies[i][e];
    }
  }
}

ExpertDispatch Experts::dispatch(const at::Tensor& x_CD, const Routing& routing,
                                 const std::vector<int64_t>* numbers) const {
  if (!are_exchanged() && are_grouped(x_CD)) {
    return ExpertDispatch::on_device(routing.experts_CK, spec_.num_experts);
  }
  if (numbers != nullptr && !numbers->empty()) return {routing.experts_CK, *numbers, exchange_};
  return {routing.experts_CK, spec_.num_experts, exchange_};
}

void Experts::add_grouped(at::Tensor& sum_CD, const RoutedRows& routed,
                          const at::Tensor& x_CD) const {
  const Routing& routing = routed.routing;
  const ExpertDispatch& sorted = routed.sorted;
  const at::Tensor &places_S = sorted.places(), &weights_CK = routing.weights_CK;
  const GroupedExperts experts(weights_, spec_.activation, sorted.device_counts(), places_S.size(0),
                               /*trains=*/false);
  const at::Tensor y_SD = experts.forward(places_S, {x_CD, sorted.rows()});
  grouped::combine_(sum_CD, y_SD.view({x_CD.size(0), weights_CK.size(1), x_CD.size(1)}),
                    weights_CK.contiguous());
}

at::Tensor Experts::grouped_backward(at::Tensor& dx_CD, const RoutedRows& routed,
                                     const at::Tensor& dout_CD, const at::Tensor& x_CD) const {
  const Routing& routing = routed.routing;
  const ExpertDispatch& sorted = routed.sorted;
  const at::Tensor &places_S = sorted.places(), &rows_S = sorted.rows();
  const at::Tensor weights = routing.weights_CK.reshape({-1});
  at::Tensor dweights = at::empty_like(weights);
  const GroupedExperts experts(weights_, spec_.activation, sorted.device_counts(), places_S.size(0),
                               /*trains=*/true);
  const at::Tensor dx_SD =
      experts.backward(dweights, places_S, {x_CD, rows_S}, {dout_CD.contiguous(), rows_S},
                       weights.index_select(0, places_S));
  grouped::combine_(dx_CD, dx_SD.view({x_CD.size(0), routing.weights_CK.size(1), x_CD.size(1)}),
                    {});
  return dweights.view_as(routing.weights_CK);
}

void Experts::add(at::Tensor& sum_CD, const RoutedRows& routed, const at::Tensor& x_CD,
                  const RowRange& rows, const at::Tensor& room) const {
  const ExpertDispatch& sorted = routed.sorted;
  if (are_exchanged()) return add_exchanged(sum_CD, routed, x_CD);
  if (sorted.device_counts().defined()) return add_grouped(sum_CD, routed, x_CD);
  const at::Tensor own =
      room.defined() ? room : room_of(kForwardParts, x_CD.size(0), x_CD.options());
  const at::Tensor weights = routed.routing.weights_CK.reshape({-1});
  sorted.for_each([&](size_t number, int64_t begin, int64_t R) {
    if (R == 0) return;
    const at::Tensor rows_R = sorted.rows().narrow(0, begin, R);
    const ExpertMlp expert = weights_for(number, rows_R, rows.begin, x_CD.scalar_type());
    add_weighted_rows_(sum_CD, rows_R,
                       output_of(expert, spec_.activation, x_CD.index_select(0, rows_R), own),
                       weights.index_select(0, sorted.places().narrow(0, begin, R)));
  });
}

/// Returns the outputs of the experts here for arriving rows, `counts` for each. Overwrites x_SD.
at::Tensor Experts::outputs_of_arrived(at::Tensor x_SD, const std::vector<int64_t>& counts) const {
  if (are_grouped(x_SD)) {
    const GroupedExperts experts(weights_, spec_.activation, counts_on(x_SD.device(), counts),
                                 x_SD.size(0), /*trains=*/false);
    return experts.forward({}, {x_SD});
  }
  const at::Tensor room = room_of(kForwardParts, most_of(counts), x_SD.options());
  for_arrived(counts, [&](size_t number, int64_t begin, int64_t R) {
    if (R == 0) return;
    const at::Tensor x_RD = x_SD.narrow(0, begin, R);
    x_RD.copy_(
        output_of(weights_for(number, {}, 0, x_SD.scalar_type()), spec_.activation, x_RD, room));
  });
  return x_SD;
}

void Experts::add_exchanged(at::Tensor& sum_CD, const RoutedRows& routed,
                            const at::Tensor& x_CD) const {
  const ExpertDispatch& sorted = routed.sorted;
  const ExpertRoutes& routes = sorted.routes();
  at::Tensor y_SD = outputs_of_arrived(
      routes.to_experts({x_CD.index_select(0, sorted.rows())}).at(0), routes.counts());
  const at::Tensor y_RD = routes.back({std::exchange(y_SD, {})}).at(0);
  add_returned_rows_(sum_CD, sorted, y_RD, routed.routing.weights_CK);
}

at::Tensor Experts::backward(at::Tensor& dx_CD, const RoutedRows& routed, const at::Tensor& dout_CD,
                             const at::Tensor& x_CD, const RowRange& rows,
                             const at::Tensor& room) const {
  const Routing& routing = routed.routing;
  const ExpertDispatch& sorted = routed.sorted;
  if (are_exchanged()) return exchanged_backward(dx_CD, routed, dout_CD, x_CD);
  if (sorted.device_counts().defined()) return grouped_backward(dx_CD, routed, dout_CD, x_CD);
  const at::Tensor own =
      room.defined() ? room : room_of(kBackwardParts, x_CD.size(0), x_CD.options());
  const at::Tensor weights = routing.weights_CK.reshape({-1});
  const at::Tensor dweights = at::zeros_like(weights);
  sorted.for_each([&](size_t number, int64_t begin, int64_t R) {
    make_gradients(weights_[number]);
    if (R == 0) return;
    const at::Tensor rows_R = sorted.rows().narrow(0, begin, R),
                     places_R = sorted.places().narrow(0, begin, R);
    const RowGradients gradients =
        gradients_of(weights_for(number, rows_R, rows.begin, x_CD.scalar_type()), spec_.activation,
                     x_CD.index_select(0, rows_R), dout_CD.index_select(0, rows_R),
                     weights.index_select(0, places_R), own);
    dweights.index_copy_(0, places_R, gradients.dweights_R);
    add_weighted_rows_(dx_CD, rows_R, gradients.dx_RD, {});
  });
  return dweights.view_as(routing.weights_CK);
}

at::Tensor Experts::exchanged_backward(at::Tensor& dx_CD, const RoutedRows& routed,
                                       const at::Tensor& dout_CD, const at::Tensor& x_CD) const {
  const Routing& routing = routed.routing;
  const ExpertDispatch& sorted = routed.sorted;
  const at::Tensor weights = routing.weights_CK.reshape({-1});
  const ExpertRoutes& routes = sorted.routes();
  std::vector<at::Tensor> arrived = routes.to_experts({x_CD.index_select(0, sorted.rows()),
                                                       dout_CD.index_select(0, sorted.rows()),
                                                       weights.index_select(0, sorted.places())});
  at::Tensor x_SD = arrived.at(0);
  const at::Tensor dout_SD = arrived.at(1), weights_S = arrived.at(2);
  arrived.clear();
  at::Tensor dweights_S = at::empty_like(weights_S);
  x_SD = gradients_of_arrived(dweights_S, std::exchange(x_SD, {}), dout_SD, weights_S,
                              routes.counts());
  const std::vector<at::Tensor> returned = routes.back({x_SD, dweights_S});
  add_returned_rows_(dx_CD, sorted, returned[0], {});
  return at::zeros_like(weights)
      .index_copy_(0, sorted.places(), returned[1])
      .view_as(routing.weights_CK);
}

/// Returns d loss / d x of the arriving rows. Overwrites x_SD and dout_SD.
at::Tensor Experts::gradients_of_arrived(at::Tensor& dweights_S, at::Tensor x_SD,
                                         const at::Tensor& dout_SD, const at::Tensor& weights_S,
                                         const std::vector<int64_t>& counts) const {
  if (are_grouped(x_SD)) {
    const GroupedExperts experts(weights_, spec_.activation, counts_on(x_SD.device(), counts),
                                 x_SD.size(0), /*trains=*/true);
    return experts.backward(dweights_S, {}, {x_SD}, {dout_SD}, weights_S);
  }
  const at::Tensor room = room_of(kBackwardParts, most_of(counts), x_SD.options());
  for_arrived(counts, [&](size_t number, int64_t begin, int64_t R) {
    make_gradients(weights_[number]);
    if (R == 0) return;
    const at::Tensor x_RD = x_SD.narrow(0, begin, R);
    const RowGradients gradients =
        gradients_of(weights_for(number, {}, 0, x_SD.scalar_type()), spec_.activation, x_RD,
                     dout_SD.narrow(0, begin, R), weights_S.narrow(0, begin, R), room);
    dweights_S.narrow(0, begin, R).copy_(gradients.dweights_R);
    x_RD.copy_(gradients.dx_RD);
  });
  return x_SD;
}

}  // namespace longspan
