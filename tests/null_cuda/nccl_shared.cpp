#include "nccl_shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "core.h"

namespace null_cuda {
namespace {

class Locked {
 public:
  explicit Locked(Shared* shared) : mutex_(&shared->mutex) {
    // A rank that died with the lock leaves no inconsistent data that others read.
    if (pthread_mutex_lock(mutex_) == EOWNERDEAD) pthread_mutex_consistent(mutex_);
  }
  ~Locked() { pthread_mutex_unlock(mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

/// Polls the question for up to a minute.
bool comes_true(Shared* shared, const std::function<bool()>& question) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    {
      const Locked locked(shared);
      if (question()) return true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

std::string text_of(const Message& message) {
  return "rank " + std::to_string(message.rank) + " starts " + name_of_kind(message.kind) + " of " +
         std::to_string(message.count) + " numbers of type " + std::to_string(message.type);
}

}  // namespace

const char* name_of_kind(int kind) {
  constexpr const char* kNames[] = {"AllReduce",     "Broadcast", "Reduce", "AllGather",
                                    "ReduceScatter", "AlltoAll",  "Gather", "Send"};
  return kNames[kind];
}

bool create_shared(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0) return false;
  const bool sized = ftruncate(file, sizeof(Shared)) == 0;
  close(file);
  Shared* const shared = sized ? open_shared(name) : nullptr;
  if (shared == nullptr) return false;
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared->mutex, &kind);
  pthread_mutexattr_destroy(&kind);
  close_shared(shared);
  return true;
}

Shared* open_shared(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, /*offset=*/0);
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
}

void close_shared(Shared* shared) { munmap(shared, sizeof(Shared)); }

bool join(Shared* shared, const std::string& name, int num_ranks, int rank, int world_rank) {
  {
    const Locked locked(shared);
    shared->world_ranks[rank] = world_rank;
    if (++shared->joined == num_ranks) shm_unlink(name.c_str());
  }
  return comes_true(shared, [&] { return shared->joined == num_ranks; });
}

void give_part(Shared* shared, uint64_t number, int rank, const void* bytes, size_t size) {
  const Locked locked(shared);
  Parts& parts = shared->parts[number % kParts];
  parts.numbers[rank] = number;
  std::memcpy(parts.bytes[rank], bytes, size);
}

bool take_parts(Shared* shared, uint64_t number, int num_ranks, size_t size, unsigned char* parts) {
  const Parts& given = shared->parts[number % kParts];
  return comes_true(shared, [&] {
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (given.numbers[rank] != number) return false;
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      std::memcpy(parts + rank * size, given.bytes[rank], size);
    }
    return true;
  });
}

std::string tell(Shared* shared, Channel& channel, const Message& message) {
  const Locked locked(shared);
  Message& other = channel.messages[message.number % kMessages];
  if (other.number > message.number) return "";  // the others are too far ahead to compare
  if (other.number < message.number) {
    other = message;
    return "";
  }
  const bool same = other.kind == message.kind && other.type == message.type &&
                    other.root == message.root && other.count == message.count;
  return same ? "" : text_of(message) + ", where " + text_of(other);
}

bool named_by(const char* variable, uint64_t number) {
  const char* const asked = std::getenv(variable);
  const char* const own = std::getenv("RANK");
  int rank = 0;
  unsigned long long wanted = 0;
  return asked != nullptr && std::sscanf(asked, "%d:%llu", &rank, &wanted) == 2 &&
         (rank < 0 || rank == (own != nullptr ? std::atoi(own) : 0)) && wanted == number;
}

bool Connections::take(int device, int kind) {
  static const char* const asked = std::getenv("NULL_NCCL_MEMORY");
  const auto bytes = asked != nullptr ? static_cast<size_t>(std::atoll(asked)) << 20 : 0;
  if (bytes == 0 || memory_ != 0 || (kind != kAllToAll && kind != kSend)) return true;
  memory_ = create_memory(device, bytes);
  return memory_ != 0;
}

void Connections::drop() {
  if (memory_ != 0) release_memory(std::exchange(memory_, 0));
}

}  // namespace null_cuda
