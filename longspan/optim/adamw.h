// AdamW with decoupled weight decay (arXiv 1711.05101), torch's fused step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/models/decoder.h"
#include "longspan/optim/state_piece.h"

namespace longspan {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
};

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
  /// Updates each piece that has a gradient.
  virtual void step(double learning_rate) = 0;
  /// One lazy StateSource per locally trained piece, without "master". make() reads the state at
  /// that moment. Sources must not outlive the optimizer; do not modify a piece, nor use it after
  /// step().
  virtual std::vector<StateSource> state() const = 0;
  /// Loads the state of piece i of state(). A "master" in it becomes the values.
  virtual void load_state(size_t i, const StatePiece& piece) = 0;
};

class AdamW : public Optimizer {
 public:
  /// First and second moments live in the dtype of the values, on their device or where `allocate`
  /// puts them.
  AdamW(std::vector<ParameterPiece> pieces, const AdamWOptions& options,
        const AllocateLike& allocate = {});

  void step(double learning_rate) override;
  std::vector<StateSource> state() const override;
  void load_state(size_t i, const StatePiece& piece) override;
  /// Drops the gradients; the next backward makes fresh ones.
  void zero_grad();

 private:
  struct Trained {
    ParameterPiece piece;
    at::Tensor first_moment, second_moment;  // of the values' shape
    at::Tensor num_steps;                    // fp32: the fused kernel wants it so
  };
  void update(const std::vector<Trained*>& trained, double learning_rate, double weight_decay);

  AdamWOptions options_;
  std::vector<Trained> trained_;
};

/// Throws an assertion unless the state is of this run of this parameter.
void require_same_run(const StatePiece& state, const ParameterPiece& trained);

}  // namespace longspan
