#include "longspan/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace longspan {

std::vector<ParameterPiece> whole_pieces(const std::vector<NamedTensor>& parameters,
                                         const ParameterTable& specs) {
  std::vector<ParameterPiece> pieces;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    pieces.push_back({name, 0, tensor.numel(), tensor, specs.of(name)});
  }
  return pieces;
}

void require_same_run(const StatePiece& state, const ParameterPiece& trained) {
  TORCH_CHECK(state.parameter == trained.parameter && state.begin == trained.begin &&
                  state.end == trained.end,
              "state of ", state.parameter, " for ", trained.parameter);
}

StateSource with_master(StateSource source, const at::Tensor& values) {
  source.dtypes["master"] = values.scalar_type();
  source.make = [make = std::move(source.make), values = values.detach()] {
    StatePiece piece = make();
    piece.tensors["master"] = values.flatten();
    return piece;
  };
  return source;
}

AdamW::AdamW(std::vector<ParameterPiece> pieces, const AdamWOptions& options,
             const AllocateLike& allocate)
    : options_(options) {
  const at::NoGradGuard no_grad;
  const auto zeros = [&](const at::Tensor& values) {
    return allocate ? allocate(values).zero_() : at::zeros_like(values);
  };
  for (ParameterPiece& piece : pieces) {
    const at::Tensor values = piece.values.detach();
    at::Tensor first = zeros(values), second = zeros(values);
    at::Tensor num_steps = at::zeros({}, first.options().dtype(at::kFloat));
    trained_.push_back(
        {std::move(piece), std::move(first), std::move(second), std::move(num_steps)});
  }
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const bool decayed : {true, false}) {
    std::vector<Trained*> group;
    for (Trained& trained : trained_) {
      if (!trained.piece.values.grad().defined()) continue;
      if (trained.piece.spec.decays == decayed) group.push_back(&trained);
    }
    update(group, learning_rate, decayed ? options_.weight_decay : 0.0);
  }
}

void AdamW::update(const std::vector<Trained*>& trained, double learning_rate,
                   double weight_decay) {
  std::vector<at::Tensor> values, gradients, first, second, steps;
  const auto run = [&] {
    if (values.empty()) return;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(values, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate, options_.beta1, options_.beta2, weight_decay, options_.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (auto* list : {&values, &gradients, &first, &second, &steps}) list->clear();
  };
  for (Trained* t : trained) {
    const at::Tensor& gradient = t->piece.values.grad();
    const auto device = t->first_moment.device();
    values.push_back(t->piece.values.to(device));
    gradients.push_back(gradient.to(device));
    first.push_back(t->first_moment);
    second.push_back(t->second_moment);
    steps.push_back(t->num_steps);
    // If states live on another device, copy one parameter there, update, copy it back.
    if (t->piece.values.device() == device) continue;
    const at::Tensor visiting = values.back();
    run();
    t->piece.values.copy_(visiting);
  }
  run();
}

std::vector<StateSource> AdamW::state() const {
  std::vector<StateSource> sources;
  for (const Trained& t : trained_) {
    const auto dtype = t.first_moment.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    // Views, unless moments are kept in another dtype.
    const auto make = [&t, dtype] {
      return StatePiece{t.piece.parameter,
                        t.piece.begin,
                        t.piece.end,
                        std::llround(t.num_steps.item<double>()),
                        {{"exp_avg", t.first_moment.flatten().to(dtype)},
                         {"exp_avg_sq", t.second_moment.flatten().to(dtype)}}};
    };
    sources.push_back({t.piece.parameter,
                       t.piece.begin,
                       t.piece.end,
                       {{"exp_avg", dtype}, {"exp_avg_sq", dtype}},
                       make});
  }
  return sources;
}

void AdamW::load_state(size_t i, const StatePiece& piece) {
  const at::NoGradGuard no_grad;
  Trained& t = trained_.at(i);
  require_same_run(piece, t.piece);
  t.first_moment.copy_(piece.tensors.at("exp_avg").view(t.first_moment.sizes()));
  t.second_moment.copy_(piece.tensors.at("exp_avg_sq").view(t.second_moment.sizes()));
  t.num_steps.fill_(static_cast<double>(piece.num_steps));
  const auto master = piece.tensors.find("master");
  if (master == piece.tensors.end()) return;
  t.piece.values.copy_(master->second.view(t.piece.values.sizes()));
}

void AdamW::zero_grad() {
  for (Trained& t : trained_) t.piece.values.mutable_grad().reset();
}

}  // namespace longspan
