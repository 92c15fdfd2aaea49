#include "longspan/layers/mixture_of_experts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "longspan/kernels/expert_rows.h"
#include "longspan/kernels/gated_activation.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/layers/plain_steps.h"

namespace longspan {
namespace {

/// The experts of each row, and the numbers that the host knows.
class ExpertChoice : public RowChoice {
 public:
  ExpertChoice(const at::Tensor& experts_CK, int64_t num_experts, const ExpertDispatch& sorted)
      : experts_CK_(experts_CK.to(expert_number_bytes(num_experts) == 2 ? at::kShort : at::kInt)),
        numbers_(sorted.numbers()) {}

  const at::Tensor& experts_CK() const { return experts_CK_; }
  const std::vector<int64_t>& numbers() const { return numbers_; }

 private:
  at::Tensor experts_CK_;
  std::vector<int64_t> numbers_;
};

}  // namespace

MixtureOfExperts::MixtureOfExperts(const MixtureOfExpertsSpec& spec, int64_t hidden_size,
                                   int64_t layer, Weights weights)
    : spec_(spec), cost_(cost_of(spec, hidden_size)), layer_(layer), weights_(std::move(weights)) {}

std::unique_ptr<FeedForward> MixtureOfExperts::clone() const {
  return std::make_unique<MixtureOfExperts>(*this);
}

int64_t MixtureOfExperts::chunk_width(const RowContext& row) const {
  const bool are_grouped = row.on_gpu && row.compute_dtype == at::kBFloat16 &&
                           cost_.grouped.rows > 0 && !weights_.experts.are_exchanged() &&
                           weights_.experts.can_be_grouped();
  return are_grouped ? cost_.grouped.width : cost_.width;
}

// Linear layers of experts are last, so the number of experts here does not change other numbers.
std::vector<Linear*> MixtureOfExperts::linears() {
  std::vector<Linear*> all = linears_of_all_rows();
  for (Linear* linear : weights_.experts.linears()) all.push_back(linear);
  return all;
}

std::vector<Linear*> MixtureOfExperts::linears_of_all_rows() {
  if (!weights_.shared) return {};
  std::vector<Linear*> some = weights_.shared->linears();
  if (weights_.shared_gate.weight.defined()) some.push_back(&weights_.shared_gate);
  return some;
}

std::vector<at::Tensor> MixtureOfExperts::parameters() const {
  std::vector<at::Tensor> parameters = weights_.router.parameters();
  weights_.experts.append_parameters_to(parameters);
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
  return weights_.experts.forward_room(num_rows, options);
}

at::Tensor MixtureOfExperts::backward_room(int64_t num_rows, bool /*saved*/,
                                           const at::TensorOptions& options) const {
  return weights_.experts.backward_room(num_rows, options);
}

/// Routes by an earlier choice, where there is one.
RoutedRows MixtureOfExperts::routed(const at::Tensor& x_CD, const SharedChoice& choice) const {
  const auto* const known = static_cast<const ExpertChoice*>(choice.get());
  TORCH_CHECK(!known || known->experts_CK().size(0) == x_CD.size(0), "a choice of other rows");
  Routing routing = weights_.router.route(x_CD, known ? known->experts_CK() : at::Tensor());
  ExpertDispatch sorted =
      weights_.experts.dispatch(x_CD, routing, known ? &known->numbers() : nullptr);
  return {std::move(routing), std::move(sorted)};
}

void MixtureOfExperts::count(const Routing& routing, const RowRange& rows,
                             const RowContext& row) const {
  if (row.expert_load == nullptr) return;
  const at::Tensor is_real_C =
      row.is_real_T.defined() ? row.is_real_T.narrow(0, rows.begin, rows.size) : at::Tensor();
  const at::Tensor counts_E =
      rows_by_expert(routing.experts_CK, spec_.num_experts, is_real_C).to(at::kDouble);
  at::Tensor scores_CE = routing.scores_CE;
  if (!row.expert_load->sums_scores) return row.expert_load->add(layer_, counts_E, {});
  if (is_real_C.defined()) {
    // On a GPU, selecting real rows would make the host wait for their number.
    scores_CE = is_real_C.is_cpu() ? scores_CE.index_select(0, is_real_C.nonzero().squeeze(1))
                                   : scores_CE.masked_fill(is_real_C.logical_not().unsqueeze(1), 0);
  }
  row.expert_load->add(layer_, counts_E, scores_CE.sum(0, /*keepdim=*/false, at::kDouble));
}

/// Returns the auxiliary loss's gradient of the scores.
at::Tensor MixtureOfExperts::score_gradients(const Routing& routing, const RowRange& rows,
                                             const RowContext& row) const {
  if (row.expert_load == nullptr || !row.expert_load->gradient_E.defined()) return {};
  const at::Tensor gradient_E = row.expert_load->gradient_E.to(routing.scores_CE.options());
  if (!row.is_real_T.defined()) return gradient_E.expand_as(routing.scores_CE);
  return row.is_real_T.narrow(0, rows.begin, rows.size).to(gradient_E.scalar_type()).unsqueeze(1) *
         gradient_E;
}

/// Returns the shared expert's output before its gate.
at::Tensor MixtureOfExperts::shared_output(const InputRows& x) const {
  const at::Tensor y_CD = at::zeros_like(x.x_CD);
  const at::Tensor room =
      weights_.shared->forward_room(x.rows.size, /*saved=*/false, x.x_CD.options());
  SharedChoice nothing;
  weights_.shared->forward_out(y_CD, y_CD, x, /*saved=*/{}, nothing, room);
  return y_CD;
}

/// Returns the shared expert's output.
at::Tensor MixtureOfExperts::gated_shared_output(const InputRows& x) const {
  at::Tensor y_CD = shared_output(x);
  if (spec_.shared.is_gated) {
    y_CD.mul_(weights_.shared_gate.for_rows(x.rows.begin, x.rows.size).forward(x.x_CD).sigmoid());
  }
  return y_CD;
}

void MixtureOfExperts::forward_out(at::Tensor out_CD, const at::Tensor& h_CD, const InputRows& x,
                                   const SavedStep& /*saved*/, SharedChoice& choice,
                                   const at::Tensor& room) const {
  const auto& [x_CD, rows, row] = x;
  const RoutedRows chosen = routed(x_CD, choice);
  if (!choice) count(chosen.routing, rows, row);
  // A bf16 sum would round each expert's part.
  const bool adds_in_place = out_CD.scalar_type() == arithmetic_dtype(out_CD.scalar_type());
  at::Tensor sum_CD = out_CD;
  if (!adds_in_place) {
    sum_CD = h_CD.to(arithmetic_dtype(out_CD.scalar_type()));
  } else if (!out_CD.is_same(h_CD)) {
    out_CD.copy_(h_CD);
  }
  // Gives the GPU work while the host waits for the number of rows of each expert.
  at::Tensor shared_CD;
  if (weights_.shared && row.on_gpu) shared_CD = gated_shared_output(x);
  weights_.experts.add(sum_CD, chosen, x_CD, rows, room);
  if (weights_.shared && !row.on_gpu) shared_CD = gated_shared_output(x);
  if (shared_CD.defined()) sum_CD.add_(shared_CD);
  if (!adds_in_place) out_CD.copy_(sum_CD);
  if (!choice) {
    choice =
        std::make_shared<ExpertChoice>(chosen.routing.experts_CK, spec_.num_experts, chosen.sorted);
  }
}

void MixtureOfExperts::shared_backward(at::Tensor& dx_CD, const at::Tensor& dout_CD,
                                       const InputRows& x) const {
  if (!weights_.shared) return;
  const at::Tensor& x_CD = x.x_CD;
  const RowRange& rows = x.rows;
  at::Tensor dy_CD = dout_CD;
  if (spec_.shared.is_gated) {
    const Linear gate = weights_.shared_gate.for_rows(rows.begin, rows.size);
    const at::Tensor open_C1 = gate.forward(x_CD).sigmoid();
    const at::Tensor dopen_C1 =
        row_dots(dout_CD, shared_output(x)).to(x_CD.scalar_type()).unsqueeze(1);
    const at::Tensor dlogit_C1 = dopen_C1 * open_C1 * (1 - open_C1);
    gate.add_gradients(dlogit_C1, x_CD);
    dx_CD.add_(gate.input_gradient(dlogit_C1));
    dy_CD = dout_CD * open_C1;
  }
  const at::Tensor room =
      weights_.shared->backward_room(rows.size, /*saved=*/false, x_CD.options());
  dx_CD.add_(weights_.shared->backward(dy_CD, x, /*saved=*/{}, /*choice=*/nullptr, room));
}

at::Tensor MixtureOfExperts::backward(const at::Tensor& dout_CD, const InputRows& x,
                                      const SavedStep& /*saved*/, const SharedChoice& choice,
                                      const at::Tensor& room) const {
  const auto& [x_CD, rows, row] = x;
  const RoutedRows chosen = routed(x_CD, choice);
  at::Tensor dx_CD =
      at::zeros(x_CD.sizes(), x_CD.options().dtype(arithmetic_dtype(x_CD.scalar_type())));
  const at::Tensor dweights_CK =
      weights_.experts.backward(dx_CD, chosen, dout_CD, x_CD, rows, room);
  weights_.router.backward(chosen.routing, dweights_CK, score_gradients(chosen.routing, rows, row),
                           x_CD, dx_CD);
  shared_backward(dx_CD, dout_CD, x);
  return dx_CD.to(x_CD.scalar_type());
}

at::Tensor MixtureOfExperts::plain(const at::Tensor& x_TD) const {
  TORCH_CHECK(!weights_.experts.are_exchanged(), "the plain version has all experts here");
  const Routing routing = weights_.router.route(x_TD);
  at::Tensor sum_TD = at::zeros_like(x_TD);
  const std::vector<ExpertMlp>& experts = weights_.experts.weights();
  for (size_t number = 0; number < experts.size(); ++number) {
    const ExpertMlp& expert = experts[number];
    at::Tensor act;
    if (expert.takes_turns()) {
      const at::Tensor both_TI2 =
          plain_linear(expert.gate_up_proj, x_TD).unflatten(1, {spec_.expert_size, 2});
      act = plain_gated(spec_.activation, both_TI2.select(2, 0), both_TI2.select(2, 1));
    } else {
      act = plain_gated(spec_.activation, plain_linear(expert.gate_proj, x_TD),
                        plain_linear(expert.up_proj, x_TD));
    }
    const at::Tensor chosen_TK = routing.experts_CK.eq(static_cast<int64_t>(number));
    const at::Tensor weight_T1 =
        (routing.weights_CK * chosen_TK).sum(1, /*keepdim=*/true).to(x_TD.scalar_type());
    sum_TD = sum_TD + plain_linear(expert.down_proj, act) * weight_T1;
  }
  if (!weights_.shared) return sum_TD;
  const at::Tensor shared_TD = weights_.shared->plain(x_TD);
  if (!spec_.shared.is_gated) return sum_TD + shared_TD;
  return sum_TD + plain_linear(weights_.shared_gate, x_TD).sigmoid() * shared_TD;
}

std::shared_ptr<const FeedForward> make_feed_forward(const MixtureOfExpertsSpec& spec,
                                                     const ModelSpec& model,
                                                     const LayerWeights& weights) {
  const auto gated_mlp = [&](const std::string& name) {
    return GatedMlp::Weights{weights.linear(name + ".gate_proj"), weights.linear(name + ".up_proj"),
                             weights.linear(name + ".down_proj")};
  };
  ExpertExchange* const exchange = weights.expert_exchange();
  const ExpertRange here =
      exchange == nullptr ? ExpertRange{0, spec.num_experts} : exchange->here(spec.num_experts);
  std::vector<ExpertMlp> experts;
  for (int64_t expert = here.begin; expert < here.end; ++expert) {
    const std::string name = fmt::format("mlp.experts.{}", expert);
    ExpertMlp& mlp = experts.emplace_back();
    mlp.down_proj = weights.linear(name + ".down_proj");
    if (spec.stacked) {
      mlp.gate_up_proj = weights.linear(name + ".gate_up_proj");
    } else {
      mlp.gate_proj = weights.linear(name + ".gate_proj");
      mlp.up_proj = weights.linear(name + ".up_proj");
    }
  }
  const std::string router = "mlp." + spec.router.name;
  const auto where = [&](bool there, const char* name) {
    return there ? weights.tensor(router + name) : at::Tensor();
  };
  MixtureOfExperts::Weights own{
      .router = Router(spec, {.weight_ED = weights.tensor(router + ".weight"),
                              .bias_E = where(spec.router.has_bias, ".bias"),
                              .correction_E = where(spec.router.has_correction_bias,
                                                    ".e_score_correction_bias")}),
      .experts = Experts(spec, std::move(experts), exchange),
      .shared = std::nullopt,
      .shared_gate = {}};
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
