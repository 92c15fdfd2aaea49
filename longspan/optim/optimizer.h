// What updates parameters from their gradients: the interface, and what every one of them needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/optim/state_piece.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// One piece for each parameter that requires a gradient: the whole parameter. `specs` has all of
/// them.
std::vector<ParameterPiece> whole_pieces(const std::vector<NamedTensor>& parameters,
                                         const ParameterTable& specs);

/// Allocates an uninitialized state of the tensor's size and dtype, wherever states live.
using AllocateLike = std::function<at::Tensor(const at::Tensor& like)>;

/// What updates parameters from their gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates each piece that has a gradient. Where ranks divide parameters among them, it may be
  /// collective over these ranks.
  virtual void step(double learning_rate) = 0;
  /// One lazy StateSource per locally trained piece, without "master". make() reads the state at
  /// that moment. Sources must not outlive the optimizer; do not modify a piece, nor use it after
  /// step().
  virtual std::vector<StateSource> state() const = 0;
  /// Loads the state of piece i of state(). A "master" in it becomes the values.
  virtual void load_state(size_t i, const StatePiece& piece) = 0;
};

/// Throws an assertion unless the state is of this run of this parameter.
void require_same_run(const StatePiece& state, const ParameterPiece& trained);

/// A "master" in the state, if it has one, becomes the values.
void load_master(const StatePiece& state, const ParameterPiece& trained);

/// Work on whole matrices. `make(i)` returns as many numbers as piece i has, on any device. `use(i,
/// whole)` receives the numbers of all pieces of piece i's parameter, in the parameter's shape, on
/// the device that computes. It is called once for each piece of this rank.
struct WholeWork {
  at::ScalarType dtype;  // of the numbers that ranks send
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
