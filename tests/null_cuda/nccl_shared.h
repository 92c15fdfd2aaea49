// What the ranks of an NCCL communicator tell each other: the messages that each has begun, and the
// few numbers that GPUs keep (values.h). A rank waits for others where the communicator is made,
// and where its host asks for what a collective makes of such numbers.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <string>

#include "values.h"

namespace null_cuda {

/// A message of a collective or of a pair of ranks.
struct Message {
  uint64_t number = 0;  // of its channel, from 1
  int32_t kind = 0, type = 0, root = 0, rank = 0;
  uint64_t count = 0;
};

inline constexpr int kMostRanks = 8;  // whose messages are compared
inline constexpr uint64_t kMessages = 1024;

struct Channel {
  Message messages[kMessages];
};

inline constexpr uint64_t kParts = 256;

/// Each rank's part of a sum, or of what is gathered.
struct Parts {
  uint64_t numbers[kMostRanks];  // of the collective; from 1
  unsigned char bytes[kMostRanks][kMostSent];
};

/// In memory of all ranks.
struct Shared {
  pthread_mutex_t mutex;
  int joined;
  Channel collectives;
  Channel pairs[kMostRanks][kMostRanks];  // from, to
  Parts parts[kParts];
};

/// The file of it, by a name that a unique id holds.
bool create_shared(const std::string& name);
/// Null where there is none.
Shared* open_shared(const std::string& name);
void close_shared(Shared* shared);
/// Waits until all have come; the last removes the file. False after a minute.
bool join(Shared* shared, const std::string& name, int num_ranks);

/// Tells the others of a message. What another has told of the same one otherwise, else empty: its
/// message has another kind, type, root or count.
std::string tell(Shared* shared, Channel& channel, const Message& message);

/// A rank's part of the collective of this number.
void give_part(Shared* shared, uint64_t number, int rank, const void* bytes, size_t size);
/// All parts, one behind the other, once all ranks have given theirs. False after a minute.
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

}  // namespace null_cuda
