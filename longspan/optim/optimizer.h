// The interface of optimizers, and helpers that all of them use.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/optim/state_piece.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// Returns one piece for each parameter that requires a gradient: the whole parameter. `specs` must
/// contain all of them.
std::vector<ParameterPiece> whole_pieces(const std::vector<NamedTensor>& parameters,
                                         const ParameterTable& specs);

/// Allocates an uninitialized state tensor of the size and dtype of `like`, on the device for
/// states.
using AllocateLike = std::function<at::Tensor(const at::Tensor& like)>;

/// Updates parameters from their gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates each piece that has a gradient. May be collective over the ranks that shard the
  /// parameters.
  virtual void step(double learning_rate) = 0;
  /// Returns one lazy StateSource per locally trained piece, without "master". make() reads the
  /// state at the time of the call. Sources must not outlive the optimizer. Do not modify a piece,
  /// nor use it after step().
  virtual std::vector<StateSource> state() const = 0;
  /// Loads the state of piece i of state(). A "master" in it replaces the values.
  virtual void load_state(size_t i, const StatePiece& piece) = 0;
};

/// Throws c10::Error unless the state belongs to the same range of the same parameter.
void require_same_run(const StatePiece& state, const ParameterPiece& trained);

/// Copies a "master" in the state, if any, into the values.
void load_master(const StatePiece& state, const ParameterPiece& trained);

/// Work on whole matrices. make(i) returns as many elements as piece i has, on any device. use(i,
/// whole) receives the elements of all pieces of that parameter, in its shape, on the computing
/// device. use is called once for each piece of this rank.
struct WholeWork {
  at::ScalarType dtype;  // of the elements that ranks exchange
  std::function<at::Tensor(size_t piece)> make;
  std::function<void(size_t piece, const at::Tensor& whole)> use;
};
/// Runs the work. Collective over the ranks that shard the parameters.
using OverWholeMatrices = std::function<void(const WholeWork& work)>;

/// Runs the work for pieces that are whole parameters, without communication.
void over_whole_pieces(const std::vector<ParameterPiece>& pieces,
                       const std::function<bool(const ParameterPiece& piece)>& is_wanted,
                       const WholeWork& work);

}  // namespace longspan
