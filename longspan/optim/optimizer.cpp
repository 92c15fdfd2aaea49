#include "longspan/optim/optimizer.h"

#include <ATen/core/grad_mode.h>

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

void load_master(const StatePiece& state, const ParameterPiece& trained) {
  const at::NoGradGuard no_grad;
  const auto master = state.tensors.find("master");
  if (master == state.tensors.end()) return;
  trained.values.copy_(master->second.view(trained.values.sizes()));
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

void over_whole_pieces(const std::vector<ParameterPiece>& pieces,
                       const std::function<bool(const ParameterPiece& piece)>& is_wanted,
                       const WholeWork& work) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!is_wanted(pieces[i])) continue;
    work.use(i,
             work.make(i).to(pieces[i].values.device(), work.dtype).reshape(pieces[i].spec.shape));
  }
}

}  // namespace longspan
