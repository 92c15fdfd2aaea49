// The optimizer's state on disk. A file holds the state of any ranges of flattened parameters; the
// reader assembles any other ranges from these files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/state_shard.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

inline constexpr const char* kStateFolder = "training_state";

/// Returns "training_state/part-00001-of-00004.safetensors", counted from 1.
std::string state_part_name(int number, int num_parts);

/// Writes the shards into one safetensors file, one after the other. A tensor's name gives its
/// range: "exp_avg model.norm.weight 0 64". "steps ..." holds the number of updates.
void write_state_part(const std::string& path, const std::vector<StateSource>& sources);

/// Returns the state of elements [begin, end) of the parameter, as views of the tensors of
/// `source`.
StateSource part_of(const StateSource& source, int64_t begin, int64_t end);

/// The place of a parameter in the weights of a checkpoint.
struct StoredWeights {
  std::string tensor;
  int64_t begin = 0;  ///< the parameter's first number in the tensor
  /// Shape and strides of a matrix whose numbers are not contiguous in the tensor; else empty.
  std::vector<int64_t> shape = {}, strides = {};
};

/// Reads all parts of a checkpoint, and the checkpoint's weights.
class StateReader {
 public:
  /// Reads the headers of a checkpoint's folder. Tensors are read on request. `stored`: the place
  /// of each parameter's weights; a parameter without an entry is a tensor of the same name. Throws
  /// UserError if files are missing or broken.
  explicit StateReader(const std::string& folder, std::map<std::string, StoredWeights> stored = {});

  /// Fills the shard's tensors, whose names and lengths are set, and its number of updates. Throws
  /// UserError if the checkpoint lacks any element.
  void read(StateShard& shard) const;
  /// Returns numbers [begin, end) of the parameter, 1-D: from the master copy, if any, else from
  /// the weights.
  at::Tensor read_values(const std::string& parameter, int64_t begin, int64_t end) const;

 private:
  /// A tensor in one of the files.
  struct Stored {
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsEntry* entry;

    int64_t numel() const;
  };
  struct Run {
    int64_t begin, end;
    Stored values;
  };
  bool has_master(const std::string& parameter) const;
  /// Returns the weights that hold the parameter up to element `end`, and the parameter's place in
  /// these weights. Throws UserError.
  std::pair<const Stored*, StoredWeights> weights_of(const std::string& parameter,
                                                     int64_t end) const;
  /// Copies a run of the parameter from these weights into `to`.
  static void copy_weights(const Stored& weights, const StoredWeights& place, int64_t begin,
                           at::Tensor to);
  void copy_run(const std::string& what, const std::string& parameter, int64_t begin, int64_t end,
                at::Tensor to) const;

  std::string folder_;
  std::map<std::string, StoredWeights> stored_;
  std::map<std::string, std::vector<Run>> runs_;  // by "exp_avg model.norm.weight"; each sorted
  std::map<std::string, Stored> weights_;
};

/// Loads the state and the trained values into the optimizer, one shard after the other. Throws
/// UserError as StateReader::read does.
void load_optimizer(const StateReader& reader, Optimizer& optimizer);

}  // namespace longspan
