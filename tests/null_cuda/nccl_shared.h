// Data that the ranks of an NCCL communicator share: the messages that each has started, and the
// few values that GPUs keep (values.h). A rank waits for others when the communicator is made, and
// when its host asks for a collective's result on such values.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <string>

#include "values.h"

namespace null_cuda {

/// A message of a collective or of a pair of ranks.
struct Message {
  uint64_t number = 0;  // within its channel, from 1
  int32_t kind = 0, type = 0, root = 0, rank = 0;
  uint64_t count = 0;
};

inline constexpr int kMostRanks = 8;  // maximum of ranks whose messages are compared
inline constexpr uint64_t kMessages = 1024;

struct Channel {
  Message messages[kMessages];
};

inline constexpr uint64_t kParts = 256;

/// Each rank's part of a sum or gather.
struct Parts {
  uint64_t numbers[kMostRanks];  // of the collective; from 1
  unsigned char bytes[kMostRanks][kMostSent];
};

/// The data in the memory that all ranks share.
struct Shared {
  pthread_mutex_t mutex;
  int joined;
  int32_t world_ranks[kMostRanks];  // of the communicator's ranks, among all ranks of the run
  Channel collectives;
  Channel pairs[kMostRanks][kMostRanks];  // from, to
  Parts parts[kParts];
};

/// Creates the file of the shared memory. NCCL's unique id contains the file's name.
bool create_shared(const std::string& name);
/// Returns null if there is no such file.
Shared* open_shared(const std::string& name);
void close_shared(Shared* shared);
/// Waits for all ranks. The last rank removes the file. Returns false after a minute.
bool join(Shared* shared, const std::string& name, int num_ranks, int rank, int world_rank);

/// Announces a message to the other ranks. Returns the difference if another rank has announced the
/// same message with another kind, type, root or count; otherwise empty.
std::string tell(Shared* shared, Channel& channel, const Message& message);

/// Stores a rank's part of the collective with this number.
void give_part(Shared* shared, uint64_t number, int rank, const void* bytes, size_t size);
/// Returns all parts, concatenated, once all ranks have stored theirs. Returns false after a
/// minute.
bool take_parts(Shared* shared, uint64_t number, int num_ranks, size_t size, unsigned char* parts);

const char* name_of_kind(int kind);

enum Kind {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kSend
};

/// True if this process has reached the collective in the variable, RANK:NUMBER.
bool named_by(const char* variable, uint64_t number);

/// The memory that a communicator takes for connections between all its ranks (NULL_NCCL_MEMORY).
class Connections {
 public:
  /// Takes the memory, if this is the first message of a kind that needs it. Returns false if the
  /// GPU has too little.
  bool take(int device, int kind);
  void drop();

 private:
  uint64_t memory_ = 0;
};

}  // namespace null_cuda
