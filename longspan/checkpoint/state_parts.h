// The optimizer's state on disk: any cut of the parameters into runs, read back as any other.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/state_piece.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

inline constexpr const char* kStateFolder = "training_state";

/// "training_state/part-00001-of-00004.safetensors", counted from 1.
std::string state_part_name(int number, int num_parts);

/// One safetensors file with the pieces. A tensor's name tells its run: "exp_avg
/// model.norm.weight 0 64", and "steps ..." holds the number of updates. Pieces are made one after
/// the other.
void write_state_part(const std::string& path, const std::vector<StateSource>& sources);

/// A run of a piece, sharing its memory.
StateSource part_of(const StateSource& source, int64_t begin, int64_t end);

/// Where the weights of a checkpoint hold a parameter.
struct StoredWeights {
  std::string tensor;
  int64_t begin = 0;  ///< its first number there
  /// Of a matrix whose numbers are not one behind the other there: its shape, and how far its rows
  /// and its columns are apart. Empty: they are.
  std::vector<int64_t> shape = {}, strides = {};
};

/// All parts of a checkpoint, and the weights beside them.
class StateReader {
 public:
  /// `folder`: of a checkpoint. Reads headers only, and numbers as they are asked for; throws
  /// UserError when files are missing or broken. `stored`: by parameter; what is not in it is a
  /// tensor of its own name.
  explicit StateReader(const std::string& folder, std::map<std::string, StoredWeights> stored = {});

  /// Fills the piece's tensors, which are there with their names and lengths, and its number of
  /// updates. Throws UserError when the checkpoint does not hold every number of it exactly once.
  void read(StatePiece& piece) const;
  /// The values of a run of the parameter, 1-D: the master if there is one, else as the weights
  /// have it.
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
  /// The weights that hold numbers up to `end` of the parameter, and where. Throws UserError.
  std::pair<const Stored*, StoredWeights> weights_of(const std::string& parameter,
                                                     int64_t end) const;
  /// A run of the parameter as these weights have it.
  static void copy_weights(const Stored& weights, const StoredWeights& place, int64_t begin,
                           at::Tensor to);
  void copy_run(const std::string& what, const std::string& parameter, int64_t begin, int64_t end,
                at::Tensor to) const;

  std::string folder_;
  std::map<std::string, StoredWeights> stored_;
  std::map<std::string, std::vector<Run>> runs_;  // by "exp_avg model.norm.weight"; sorted
  std::map<std::string, Stored> weights_;
};

/// Gives the optimizer its state and the values that it trains, one piece after the other. Throws
/// UserError as StateReader::read does.
void load_optimizer(const StateReader& reader, Optimizer& optimizer);

}  // namespace longspan
