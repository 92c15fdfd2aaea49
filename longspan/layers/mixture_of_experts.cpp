#include "longspan/layers/mixture_of_experts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "longspan/kernels/expert_rows.h"
#include "longspan/kernels/fused_rows.h"

namespace longspan {
namespace {

at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The rows of a chunk by the expert that they go to.
class SortedRows {
 public:
  SortedRows(const at::Tensor& experts_CK, int64_t num_experts) {
    const at::Tensor flat = experts_CK.reshape({-1});
    places_ = flat.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    rows_ = places_.div(experts_CK.size(1), "floor");
    counts_ = flat.bincount({}, num_experts).cpu();
  }

  /// Calls use(expert, rows_R, places_R), with the places of these rows' weights in the flattened
  /// weights, for each expert; some have no rows.
  template <typename Use>
  void for_each(Use&& use) const {
    const int64_t* const counts = counts_.const_data_ptr<int64_t>();
    int64_t begin = 0;
    for (int64_t expert = 0; expert < counts_.numel(); ++expert) {
      use(static_cast<size_t>(expert), rows_.narrow(0, begin, counts[expert]),
          places_.narrow(0, begin, counts[expert]));
      begin += counts[expert];
    }
  }

 private:
  at::Tensor places_, rows_, counts_;
};

at::Tensor plain_linear(const at::Tensor& x, const Linear& linear) {
  return at::linear(x, linear.weight, linear.bias);
}

/// Every trained parameter gets a gradient, of zeros where no row came.
void make_gradients(const GatedMlp::Weights& expert) {
  for (const Linear* linear : {&expert.gate_proj, &expert.up_proj, &expert.down_proj}) {
    for (const at::Tensor& parameter : linear->parameters()) {
      if (parameter.defined() && parameter.requires_grad()) gradient_of(parameter);
    }
  }
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const MixtureOfExpertsSpec& spec, int64_t hidden_size,
                                   int64_t layer, Weights weights)
    : spec_(spec), cost_(cost_of(spec, hidden_size)), layer_(layer), weights_(std::move(weights)) {}

std::unique_ptr<FeedForward> MixtureOfExperts::clone() const {
  return std::make_unique<MixtureOfExperts>(*this);
}

std::vector<Linear*> MixtureOfExperts::linears() {
  std::vector<Linear*> all;
  for (GatedMlp::Weights& expert : weights_.experts) {
    all.insert(all.end(), {&expert.gate_proj, &expert.up_proj, &expert.down_proj});
  }
  for (Linear* linear : linears_of_all_rows()) all.push_back(linear);
  return all;
}

std::vector<Linear*> MixtureOfExperts::linears_of_all_rows() {
  if (!weights_.shared) return {};
  std::vector<Linear*> some = weights_.shared->linears();
  if (weights_.shared_gate.weight.defined()) some.push_back(&weights_.shared_gate);
  return some;
}

std::vector<at::Tensor> MixtureOfExperts::parameters() const {
  std::vector<at::Tensor> parameters{weights_.router.weight()};
  for (const GatedMlp::Weights& expert : weights_.experts) {
    append_parameters(parameters, {&expert.gate_proj, &expert.up_proj, &expert.down_proj});
  }
  if (weights_.shared) {
    const std::vector<at::Tensor> shared = weights_.shared->parameters();
    parameters.insert(parameters.end(), shared.begin(), shared.end());
    append_parameters(parameters, {&weights_.shared_gate});
  }
  return parameters;
}

SavedStep MixtureOfExperts::empty_saved(int64_t /*num_rows*/,
                                        const at::TensorOptions& /*options*/) const {
  return {};
}

at::Tensor MixtureOfExperts::forward_room(int64_t num_rows, bool /*saved*/,
                                          const at::TensorOptions& options) const {
  return at::empty({2, num_rows, spec_.expert_size}, options);
}

at::Tensor MixtureOfExperts::backward_room(int64_t num_rows, bool /*saved*/,
                                           const at::TensorOptions& options) const {
  return at::empty({4, num_rows, spec_.expert_size}, options);
}

/// The expert's layers in the dtype of computation, for these rows of the chunk that begins there.
GatedMlp::Weights MixtureOfExperts::expert_for(size_t expert, const at::Tensor& rows_R,
                                               int64_t begin, at::ScalarType dtype) const {
  const GatedMlp::Weights& held = weights_.experts[expert];
  const auto used = [&](const Linear& linear) {
    const Linear cast = linear.cast_for_uses(dtype);
    return cast.dropout.active() ? cast.for_rows(rows_R + begin) : cast;
  };
  return {used(held.gate_proj), used(held.up_proj), used(held.down_proj)};
}

void MixtureOfExperts::count(const Routing& routing, const RowRange& rows,
                             const RowContext& row) const {
  if (row.expert_load == nullptr) return;
  at::Tensor experts_CK = routing.experts_CK, scores_CE = routing.scores_CE;
  if (row.is_real_T.defined()) {
    const at::Tensor real = row.is_real_T.narrow(0, rows.begin, rows.size).nonzero().squeeze(1);
    experts_CK = experts_CK.index_select(0, real);
    scores_CE = scores_CE.index_select(0, real);
  }
  row.expert_load->add(
      layer_, experts_CK.reshape({-1}).bincount({}, spec_.num_experts).cpu().to(at::kDouble),
      row.expert_load->sums_scores ? scores_CE.sum(0, /*keepdim=*/false, at::kDouble).cpu()
                                   : at::Tensor());
}

/// Of the auxiliary loss.
at::Tensor MixtureOfExperts::score_gradients(const Routing& routing, const RowRange& rows,
                                             const RowContext& row) const {
  if (row.expert_load == nullptr || !row.expert_load->gradient_E.defined()) return {};
  const at::Tensor gradient_E = row.expert_load->gradient_E.to(routing.scores_CE.options());
  if (!row.is_real_T.defined()) return gradient_E.expand_as(routing.scores_CE);
  return row.is_real_T.narrow(0, rows.begin, rows.size).to(gradient_E.scalar_type()).unsqueeze(1) *
         gradient_E;
}

void MixtureOfExperts::add_experts(at::Tensor& sum_CD, const Routing& routing,
                                   const at::Tensor& x_CD, const RowRange& rows,
                                   const at::Tensor& room) const {
  const at::Tensor weights = routing.weights_CK.reshape({-1});
  SortedRows(routing.experts_CK, spec_.num_experts)
      .for_each([&](size_t number, const at::Tensor& rows_R, const at::Tensor& places_R) {
        const int64_t R = rows_R.numel();
        if (R == 0) return;
        const GatedMlp::Weights expert = expert_for(number, rows_R, rows.begin, x_CD.scalar_type());
        const at::Tensor x_RD = x_CD.index_select(0, rows_R);
        at::Tensor gate_RI = room[0].narrow(0, 0, R), up_RI = room[1].narrow(0, 0, R);
        expert.gate_proj.forward_out(gate_RI, x_RD);
        expert.up_proj.forward_out(up_RI, x_RD);
        swiglu_out(gate_RI, gate_RI, up_RI);
        add_weighted_rows_(sum_CD, rows_R, expert.down_proj.forward(gate_RI),
                           weights.index_select(0, places_R));
      });
}

/// The shared expert's, before its gate.
at::Tensor MixtureOfExperts::shared_output(const at::Tensor& x_CD, const RowRange& rows,
                                           const RowContext& row) const {
  const at::Tensor y_CD = at::zeros_like(x_CD);
  const at::Tensor room = weights_.shared->forward_room(rows.size, /*saved=*/false, x_CD.options());
  weights_.shared->forward_out(y_CD, y_CD, x_CD, rows, row, /*saved=*/{}, room);
  return y_CD;
}

void MixtureOfExperts::add_shared(at::Tensor& sum_CD, const at::Tensor& x_CD, const RowRange& rows,
                                  const RowContext& row) const {
  if (!weights_.shared) return;
  at::Tensor y_CD = shared_output(x_CD, rows, row);
  if (spec_.shared.is_gated) {
    y_CD.mul_(weights_.shared_gate.for_rows(rows.begin, rows.size).forward(x_CD).sigmoid());
  }
  sum_CD.add_(y_CD);
}

void MixtureOfExperts::forward_out(at::Tensor out_CD, const at::Tensor& h_CD,
                                   const at::Tensor& x_CD, const RowRange& rows,
                                   const RowContext& row, const SavedStep& /*saved*/,
                                   const at::Tensor& room) const {
  const Routing routing = weights_.router.route(x_CD);
  count(routing, rows, row);
  // In bf16 each expert's part would be rounded.
  const bool adds_in_place = out_CD.scalar_type() == sum_dtype(out_CD);
  at::Tensor sum_CD = out_CD;
  if (!adds_in_place) {
    sum_CD = h_CD.to(sum_dtype(out_CD));
  } else if (!out_CD.is_same(h_CD)) {
    out_CD.copy_(h_CD);
  }
  add_experts(sum_CD, routing, x_CD, rows, room);
  add_shared(sum_CD, x_CD, rows, row);
  if (!adds_in_place) out_CD.copy_(sum_CD);
}

at::Tensor MixtureOfExperts::experts_backward(at::Tensor& dx_CD, const Routing& routing,
                                              const at::Tensor& dout_CD, const at::Tensor& x_CD,
                                              const RowRange& rows, const at::Tensor& room) const {
  const at::Tensor weights = routing.weights_CK.reshape({-1});
  const at::Tensor dweights = at::zeros_like(weights);
  SortedRows(routing.experts_CK, spec_.num_experts)
      .for_each([&](size_t number, const at::Tensor& rows_R, const at::Tensor& places_R) {
        make_gradients(weights_.experts[number]);
        const int64_t R = rows_R.numel();
        if (R == 0) return;
        const GatedMlp::Weights expert = expert_for(number, rows_R, rows.begin, x_CD.scalar_type());
        const at::Tensor x_RD = x_CD.index_select(0, rows_R);
        const at::Tensor dout_RD = dout_CD.index_select(0, rows_R);
        const at::Tensor weights_R1 =
            weights.index_select(0, places_R).to(x_CD.scalar_type()).unsqueeze(1);
        const auto part = [&](int i) { return room[i].narrow(0, 0, R); };
        at::Tensor gate_RI = part(0), up_RI = part(1), dact_RI = part(3);
        expert.gate_proj.forward_out(gate_RI, x_RD);
        expert.up_proj.forward_out(up_RI, x_RD);
        const at::Tensor back_RI = part(2);  // the gradient of act, were the weights one
        expert.down_proj.input_gradient_out(back_RI, dout_RD);
        at::mul_out(dact_RI, back_RI, weights_R1);
        swiglu_backward_(gate_RI, up_RI, dact_RI);
        const auto &dgate_RI = gate_RI, &dup_RI = up_RI, &act_RI = dact_RI;
        dweights.index_copy_(0, places_R, row_dots(back_RI, act_RI));
        dout_RD.mul_(weights_R1);
        expert.down_proj.add_gradients(dout_RD, act_RI);
        expert.gate_proj.add_gradients(dgate_RI, x_RD);
        expert.up_proj.add_gradients(dup_RI, x_RD);
        at::Tensor dx_RD = expert.gate_proj.input_gradient(dgate_RI);
        expert.up_proj.add_input_gradient(dx_RD, dup_RI);
        add_weighted_rows_(dx_CD, rows_R, dx_RD, {});
      });
  return dweights.view_as(routing.weights_CK);
}

void MixtureOfExperts::shared_backward(at::Tensor& dx_CD, const at::Tensor& dout_CD,
                                       const at::Tensor& x_CD, const RowRange& rows,
                                       const RowContext& row) const {
  if (!weights_.shared) return;
  at::Tensor dy_CD = dout_CD;
  if (spec_.shared.is_gated) {
    const Linear gate = weights_.shared_gate.for_rows(rows.begin, rows.size);
    const at::Tensor open_C1 = gate.forward(x_CD).sigmoid();
    const at::Tensor dopen_C1 =
        row_dots(dout_CD, shared_output(x_CD, rows, row)).to(x_CD.scalar_type()).unsqueeze(1);
    const at::Tensor dlogit_C1 = dopen_C1 * open_C1 * (1 - open_C1);
    gate.add_gradients(dlogit_C1, x_CD);
    dx_CD.add_(gate.input_gradient(dlogit_C1));
    dy_CD = dout_CD * open_C1;
  }
  const at::Tensor room =
      weights_.shared->backward_room(rows.size, /*saved=*/false, x_CD.options());
  dx_CD.add_(weights_.shared->backward(dy_CD, x_CD, rows, row, /*saved=*/{}, room));
}

at::Tensor MixtureOfExperts::backward(const at::Tensor& dout_CD, const at::Tensor& x_CD,
                                      const RowRange& rows, const RowContext& row,
                                      const SavedStep& /*saved*/, const at::Tensor& room) const {
  const Routing routing = weights_.router.route(x_CD);
  at::Tensor dx_CD = at::zeros(x_CD.sizes(), x_CD.options().dtype(sum_dtype(x_CD)));
  const at::Tensor dweights_CK = experts_backward(dx_CD, routing, dout_CD, x_CD, rows, room);
  weights_.router.backward(routing, dweights_CK, score_gradients(routing, rows, row), x_CD, dx_CD);
  shared_backward(dx_CD, dout_CD, x_CD, rows, row);
  return dx_CD.to(x_CD.scalar_type());
}

at::Tensor MixtureOfExperts::plain(const at::Tensor& x_TD) const {
  const Routing routing = weights_.router.route(x_TD);
  at::Tensor sum_TD = at::zeros_like(x_TD);
  for (size_t number = 0; number < weights_.experts.size(); ++number) {
    const GatedMlp::Weights& expert = weights_.experts[number];
    const at::Tensor act =
        at::silu(plain_linear(x_TD, expert.gate_proj)) * plain_linear(x_TD, expert.up_proj);
    const at::Tensor chosen_TK = routing.experts_CK.eq(static_cast<int64_t>(number));
    const at::Tensor weight_T1 =
        (routing.weights_CK * chosen_TK).sum(1, /*keepdim=*/true).to(x_TD.scalar_type());
    sum_TD = sum_TD + plain_linear(act, expert.down_proj) * weight_T1;
  }
  if (!weights_.shared) return sum_TD;
  const at::Tensor shared_TD = weights_.shared->plain(x_TD);
  if (!spec_.shared.is_gated) return sum_TD + shared_TD;
  return sum_TD + plain_linear(x_TD, weights_.shared_gate).sigmoid() * shared_TD;
}

std::shared_ptr<const FeedForward> make_feed_forward(const MixtureOfExpertsSpec& spec,
                                                     const ModelSpec& model,
                                                     const LayerWeights& weights) {
  const auto gated_mlp = [&](const std::string& name) {
    return GatedMlp::Weights{weights.linear(name + ".gate_proj"), weights.linear(name + ".up_proj"),
                             weights.linear(name + ".down_proj")};
  };
  MixtureOfExperts::Weights own{
      .router = Router(spec, weights.tensor("mlp.gate.weight"),
                       spec.router.has_correction_bias
                           ? weights.tensor("mlp.gate.e_score_correction_bias")
                           : at::Tensor()),
      .experts = {},
      .shared = std::nullopt,
      .shared_gate = {}};
  for (int64_t expert = 0; expert < spec.num_experts; ++expert) {
    own.experts.push_back(gated_mlp(fmt::format("mlp.experts.{}", expert)));
  }
  if (spec.has_shared()) {
    const std::string name = "mlp." + spec.shared.name;
    own.shared.emplace(GatedMlpSpec{.intermediate_size = spec.shared.intermediate_size},
                       gated_mlp(name));
    if (spec.shared.is_gated) own.shared_gate = weights.linear(name + "_gate");
  }
  return std::make_shared<MixtureOfExperts>(spec, model.hidden_size, weights.layer(),
                                            std::move(own));
}

}  // namespace longspan
