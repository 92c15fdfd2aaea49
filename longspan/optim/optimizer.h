// What updates parameters from their gradients: the interface, and what every one of them needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/models/decoder.h"
#include "longspan/optim/state_piece.h"

namespace longspan {

/// Every parameter whole, as one piece; those that require a gradient. `specs` has all of them.
std::vector<ParameterPiece> whole_pieces(const std::vector<NamedTensor>& parameters,
                                         const ParameterTable& specs);

/// Where states live: memory for as many numbers, of the same dtype, as the tensor has. Any values.
using AllocateLike = std::function<at::Tensor(const at::Tensor& like)>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update from the gradients that are there; pieces without one are left alone. Where
  /// parameters are divided among ranks it may be collective over the ranks that divide them.
  virtual void step(double learning_rate) = 0;
  /// The state, a piece for each that is trained here, without "master": as it is when the piece is
  /// made. This outlives the sources, and pieces are not written to and not used after a step.
  virtual std::vector<StateSource> state() const = 0;
  /// Takes over the state of piece i of state(). "master", where it is there, becomes the values.
  virtual void load_state(size_t i, const StatePiece& piece) = 0;
};

/// Throws an assertion unless the state is of this run of this parameter.
void require_same_run(const StatePiece& state, const ParameterPiece& trained);

/// Some numbers for each piece of the matrices that an optimizer wants whole, and what is done with
/// the whole matrix of them. `make(i)`: as many numbers as piece i has, on any device. `use(i,
/// whole)`: the numbers of all pieces of the parameter, in the parameter's shape, on the device
/// that computes; once for each piece of this rank.
struct WholeWork {
  at::ScalarType dtype;  // in which numbers travel
  std::function<at::Tensor(size_t piece)> make;
  std::function<void(size_t piece, const at::Tensor& whole)> use;
};
/// Collective over the ranks that divide the parameters among them.
using OverWholeMatrices = std::function<void(const WholeWork& work)>;

/// For pieces that are whole parameters: every rank has what it needs.
void over_whole_pieces(const std::vector<ParameterPiece>& pieces,
                       const std::function<bool(const ParameterPiece& piece)>& is_wanted,
                       const WholeWork& work);

}  // namespace longspan
