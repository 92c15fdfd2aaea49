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

/// Every parameter whole, as one piece; those that require a gradient. `specs` has all of them.
std::vector<ParameterPiece> whole_pieces(const std::vector<NamedTensor>& parameters,
                                         const ParameterTable& specs);

/// Where states live: memory for as many numbers, of the same dtype, as the tensor has. Any values.
using AllocateLike = std::function<at::Tensor(const at::Tensor& like)>;

/// What updates parameters from their gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update from the gradients that are there; pieces without one are left alone.
  virtual void step(double learning_rate) = 0;
  /// The state, a piece for each that is trained here, without "master": as it is when the piece is
  /// made. This outlives the sources, and pieces are not written to and not used after a step.
  virtual std::vector<StateSource> state() const = 0;
  /// Takes over the state of piece i of state(). "master", where it is there, becomes the values.
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
