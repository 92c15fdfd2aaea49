// The list of one layer's parameters, to which the token mixer and the feed-forward add. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/spec/norm_kind.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Prefix of the names of all parameters in layers.
inline constexpr std::string_view kLayersPrefix = "model.layers.";

/// Returns the full name of a layer's parameter. `name`: the part after the layer's index, e.g.
/// self_attn.q_proj.weight.
std::string layer_parameter_name(int64_t layer, std::string_view name);

/// A matrix of each expert, stored as rows of the tensor <module>.<part>.<name> [experts, num_rows,
/// columns]. The matrix begins at row `begin` of the expert's rows
/// (ParameterSpec::stored_in_stack).
struct RowsOfStack {
  const char* name;
  int64_t begin, num_rows;
};

/// The shape [num_out, num_in] of a linear layer's weight. has_bias: the layer also has a bias
/// [num_out].
struct LinearShape {
  int64_t num_out, num_in;
  bool has_bias;
};

class LayerParameters {
 public:
  LayerParameters(int64_t layer, int64_t hidden_size, double initializer_range, NormKind norms);

  int64_t hidden_size() const { return hidden_size_; }
  /// Adds <module>.<name>.weight [num_out, num_in], which LoRA can adapt, and with `bias`
  /// <module>.<name>.bias.
  void linear(const char* module, const char* name, int64_t num_out, int64_t num_in, bool bias);
  /// Adds a linear layer without a bias that expands latents to keys and values.
  void linear_of_latents(const char* module, const char* name, int64_t num_out, int64_t num_in);
  /// Adds a linear layer of a module's part: <module>.<part>.<name>.weight.
  void linear_of_part(const char* module, const std::string& part, const char* name,
                      int64_t num_out, int64_t num_in, bool bias);
  /// Adds a linear layer of expert i = expert.number: <module>.<part>.<i>.<name>.weight.
  void linear_of_expert(const char* module, const char* part, const char* name,
                        const LinearShape& shape, const ExpertNumber& expert,
                        const RowsOfStack& stack);
  /// Adds a linear layer of each expert i in [0, count): <module>.<part>.<i>.<name>. The files
  /// stack the experts: weights as [count, num_in, num_out] in <module>.<part>.<name>, biases as
  /// [count, num_out] in <module>.<part>.<name>_bias.
  void stacked_linears(const char* module, const char* part, const char* name,
                       const LinearShape& shape, int64_t count);
  /// Adds <name>.weight [num_experts, hidden], which scores experts, and with `bias` <name>.bias.
  void router(const char* module, const std::string& name, int64_t num_experts, bool bias);
  /// Adds <name> [size], which is not trained.
  void buffer(const char* module, const std::string& name, int64_t size);
  /// Adds <name>.weight [size], for a norm of the model's kind.
  void norm(std::string_view module, const std::string& name, int64_t size);
  /// Adds <name> [num_heads], the logits of attention sinks.
  void sinks(const char* module, const std::string& name, int64_t num_heads);
  /// Marks the last `num_linears` linear layers, which must have no biases, as stored in the files
  /// as rows of one tensor <module>.<name>.weight. These layers share one adapter, named
  /// <module>.<name> (shares_adapter()).
  void store_together(const char* module, const char* name, int num_linears);
  /// Makes the stacks of linear_of_expert() the only storage of the experts' matrices in the files.
  void store_in_stacks();
  /// Adds <name>.weight [size], for a norm of this kind.
  void norm_of_kind(std::string_view module, const std::string& name, int64_t size, NormKind kind);
  /// Adds <name> [size], a bias that is initialized to ones.
  void bias_of_ones(const char* module, const std::string& name, int64_t size);
  /// Adds <name> [size], the logarithms of the decay rates of states.
  void log_decay(const char* module, const std::string& name, int64_t size);
  /// Adds <name> [num_channels, 1, width], a depthwise convolution.
  void convolution(const char* module, const std::string& name, int64_t num_channels,
                   int64_t width);
  std::vector<ParameterSpec> take();

 private:
  ParameterSpec& add(std::string_view module, const std::string& name, std::vector<int64_t> shape,
                     ParameterRole role, Initialisation init);
  /// Adds <linear>.weight, with `target` as the name for adapters.
  ParameterSpec& add_matrix(const char* module, const std::string& linear, const char* target,
                            int64_t num_out, int64_t num_in);
  ParameterSpec& add_bias(const char* module, const std::string& linear, int64_t num_out);

  int64_t layer_, hidden_size_;
  Initialisation matrices_;
  NormKind norms_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace longspan
