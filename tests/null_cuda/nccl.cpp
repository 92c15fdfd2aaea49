// NCCL: collectives move only the values that GPUs keep (values.h). Each checks that its tensors
// lie in the memory of the communicator's GPU, and that the ranks of the communicator start the
// same collectives.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core.h"
#include "nccl_shared.h"

using namespace null_cuda;

struct ncclComm {
  std::string name;  // of the shared memory
  int rank = 0, num_ranks = 1, device = 0;
  Shared* shared = nullptr;
  uint64_t num_collectives = 0;
  uint64_t sent[kMostRanks] = {}, received[kMostRanks] = {};
  bool is_near[kMostRanks] = {};     // the rank is on this rank's machine
  int num_near = 1;                  // such ranks, with this rank
  ncclResult_t later = ncclSuccess;  // error that the network reports later
  Connections connections;
};

namespace {

std::string& last_error() {
  static auto* const text = new std::string;
  return *text;
}

ncclResult_t failed(ncclResult_t result, const std::string& text) {
  last_error() = text;
  return result;
}

int64_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:  // also of 8 bits
      return 1;
  }
}

void find_neighbours(ncclComm& comm) {
  const char* const asked = std::getenv("NULL_NCCL_MACHINE");
  const int machine = asked != nullptr ? std::max(1, std::atoi(asked)) : INT32_MAX;
  comm.num_near = 0;
  for (int rank = 0; rank < comm.num_ranks; ++rank) {
    comm.is_near[rank] =
        comm.shared->world_ranks[rank] / machine == comm.shared->world_ranks[comm.rank] / machine;
    comm.num_near += comm.is_near[rank];
  }
}

/// Counts the bytes of a collective that pass through this rank's network card, as NCCL's rings
/// send them: each ring crosses from a machine to the next one once, through the card of another
/// rank of the machine. `whole`: bytes of the gathered or summed tensor. `passes`: of the ring.
void count_ring(const ncclComm& comm, int kind, uint64_t whole, int passes = 1) {
  if (comm.num_near == comm.num_ranks) return;
  const uint64_t crossing = passes * (whole / comm.num_ranks) * (comm.num_ranks - 1);
  count(Counted::kCardBytes, name_of_kind(kind), static_cast<int64_t>(crossing / comm.num_near));
}

void count_messages(const ncclComm& comm, int kind, uint64_t each) {
  const auto far = static_cast<uint64_t>(comm.num_ranks - comm.num_near);
  if (far > 0) count(Counted::kCardBytes, name_of_kind(kind), static_cast<int64_t>(each * far));
}

bool in_memory(const ncclComm& comm, const void* address, uint64_t size) {
  return size == 0 || (device_of(address) == comm.device && is_memory(address, size));
}

/// Runs the checks of a message of any kind: `reads` and `writes` are bytes.
ncclResult_t begin(ncclComm& comm, int kind, const void* from, uint64_t reads, const void* to,
                   uint64_t writes) {
  static uint64_t num_begun = 0;
  ++num_begun;
  count(Counted::kCollectives, name_of_kind(kind));
  count(Counted::kCollectiveBytes, name_of_kind(kind), static_cast<int64_t>(reads));
  if (named_by("NULL_NCCL_BREAK", num_begun)) {
    failed(ncclRemoteError, "null NCCL has lost another rank,\nas it was told to");
    comm.later = ncclRemoteError;
  }
  if (named_by("NULL_NCCL_HANG", num_begun)) hang();
  if (named_by("NULL_NCCL_FAIL", num_begun)) {
    return failed(ncclSystemError, "null NCCL refuses this message,\nas it was told to");
  }
  if (!comm.connections.take(comm.device, kind)) {
    return failed(ncclUnhandledCudaError, "null NCCL: no memory for its connections");
  }
  if (!in_memory(comm, from, reads) || !in_memory(comm, to, writes)) {
    complain(std::string(name_of_kind(kind)) +
             " is given a tensor that is not in the memory of GPU " + std::to_string(comm.device));
    return failed(ncclInvalidArgument, "null NCCL: a tensor is not in the memory of its GPU");
  }
  return ncclSuccess;
}

ncclResult_t compared(ncclComm& comm, Channel& channel, const Message& message) {
  const std::string otherwise = tell(comm.shared, channel, message);
  if (otherwise.empty()) return ncclSuccess;
  complain(otherwise);
  return failed(ncclInvalidUsage, "null NCCL: " + otherwise);
}

ncclResult_t collective(ncclComm_t comm, int kind, const void* from, uint64_t read, void* to,
                        uint64_t written, ncclDataType_t type, uint64_t count, int root = -1) {
  const uint64_t size = bytes_of(type);
  const ncclResult_t result = begin(*comm, kind, from, size * read, to, size * written);
  if (result != ncclSuccess) return result;
  return compared(*comm, comm->shared->collectives,
                  {++comm->num_collectives, kind, type, root, comm->rank, count});
}

template <typename T>
void add_parts(const unsigned char* parts, int num_ranks, size_t size, bool largest,
               unsigned char* bytes) {
  for (size_t at = 0; at + sizeof(T) <= size; at += sizeof(T)) {
    T total{};
    for (int rank = 0; rank < num_ranks; ++rank) {
      T part;
      std::memcpy(&part, parts + rank * size + at, sizeof part);
      total = rank == 0 ? part : largest ? std::max(total, part) : static_cast<T>(total + part);
    }
    std::memcpy(bytes + at, &total, sizeof total);
  }
}

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

/// Stores this rank's part of a collective. Returns a function that takes all parts.
std::function<std::vector<unsigned char>()> exchanged(ncclComm& comm, const void* from,
                                                      size_t size) {
  std::vector<unsigned char> own(size);
  fetch_for_collective(number_of(from), own.data(), size);
  const uint64_t number = comm.num_collectives;
  give_part(comm.shared, number, comm.rank, own.data(), size);
  return [shared = comm.shared, num_ranks = comm.num_ranks, number, size] {
    std::vector<unsigned char> parts(num_ranks * size);
    if (!take_parts(shared, number, num_ranks, size, parts.data())) {
      complain("a collective that a host asks for has not all its parts after a minute");
    }
    return parts;
  };
}

/// Sums kept values, once a host asks for them. Values that a rank's GPU does not keep count as
/// zero.
void sum_kept(ncclComm& comm, const void* from, void* to, size_t size, ncclDataType_t type,
              ncclRedOp_t how) {
  if (size == 0 || size > kMostKept) return forget(number_of(to), size);
  keep_result(number_of(to), size,
              [take = exchanged(comm, from, size), num_ranks = comm.num_ranks, size, type,
               largest = how == ncclMax](unsigned char* bytes) {
                const std::vector<unsigned char> parts = take();
                if (type == ncclFloat64) {
                  add_parts<double>(parts.data(), num_ranks, size, largest, bytes);
                } else if (type == ncclFloat32) {
                  add_parts<float>(parts.data(), num_ranks, size, largest, bytes);
                } else if (type == ncclInt64) {
                  add_parts<int64_t>(parts.data(), num_ranks, size, largest, bytes);
                } else if (type == ncclInt32) {
                  add_parts<int32_t>(parts.data(), num_ranks, size, largest, bytes);
                }
              });
}

/// Gathers kept values, once a host asks for them.
void gather_kept(ncclComm& comm, const void* from, void* to, size_t size) {
  if (size == 0 || size > kMostSent) return forget(number_of(to), size * comm.num_ranks);
  keep_result(number_of(to), size * comm.num_ranks,
              [take = exchanged(comm, from, size)](unsigned char* bytes) {
                const std::vector<unsigned char> parts = take();
                std::copy(parts.begin(), parts.end(), bytes);
              });
}

ncclResult_t joined(const std::string& name, int num_ranks, int rank, ncclComm_t* comm) {
  Shared* const shared = open_shared(name);
  const char* const own = std::getenv("RANK");
  if (shared == nullptr || num_ranks > kMostRanks ||
      !join(shared, name, num_ranks, rank, own != nullptr ? std::atoi(own) : rank)) {
    return failed(ncclSystemError, "null NCCL: not all ranks have come");
  }
  *comm = new ncclComm;
  (*comm)->name = name;
  (*comm)->rank = rank;
  (*comm)->num_ranks = num_ranks;
  (*comm)->device = current_device();
  (*comm)->shared = shared;
  find_neighbours(**comm);
  return ncclSuccess;
}

/// Returns the numbers of all ranks of a communicator, once all ranks have given theirs.
std::vector<int32_t> numbers_of_ranks(ncclComm& comm, int32_t own) {
  const uint64_t number = ++comm.num_collectives;
  give_part(comm.shared, number, comm.rank, &own, sizeof own);
  std::vector<int32_t> all(comm.num_ranks);
  if (!take_parts(comm.shared, number, comm.num_ranks, sizeof own,
                  reinterpret_cast<unsigned char*>(all.data()))) {
    all.clear();
  }
  return all;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return last_error().c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/null_nccl_%d_%08x%08x", getpid(), random(),
                random());
  return create_shared(id->internal) ? ncclSuccess
                                     : failed(ncclSystemError, "null NCCL has no shared memory");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* /*config*/) {
  count(Counted::kCalls, "ncclCommInitRank");
  return joined(id.internal, num_ranks, rank, comm);
}
/// Ranks keep their order.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* /*config*/) {
  count(Counted::kCalls, "ncclCommSplit");
  const std::string name = comm->name + "_" + std::to_string(comm->num_collectives) + "_";
  const std::vector<int32_t> colors = numbers_of_ranks(*comm, color);
  if (colors.empty()) return failed(ncclSystemError, "null NCCL: not all ranks split");
  const auto before = std::count(colors.begin(), colors.begin() + comm->rank, color);
  const bool creates = color >= 0 && before == 0, wrong = color >= 0 && before != key;
  if (wrong) complain("ranks of a new communicator are in another order than before");
  const int32_t is_ready =
      !wrong && (!creates || create_shared(name + std::to_string(color))) ? 1 : 0;
  const std::vector<int32_t> ready = numbers_of_ranks(*comm, is_ready);
  if (std::count(ready.begin(), ready.end(), 1) != comm->num_ranks)
    return failed(ncclSystemError, "null NCCL: a communicator was not split");
  if (color < 0) return *made = nullptr, ncclSuccess;
  const auto num_ranks = static_cast<int>(std::count(colors.begin(), colors.end(), color));
  return joined(name + std::to_string(color), num_ranks, key, made);
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, num_ranks, id, rank, nullptr);
}
ncclResult_t ncclCommFinalize(ncclComm_t /*comm*/) {
  count(Counted::kCalls, "ncclCommFinalize");
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  count(Counted::kCalls, "ncclCommDestroy");
  report();
  comm->connections.drop();
  delete comm;  // the ranks' shared memory stays: a host may still ask for a sum
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {  // threads may still ask for its errors
  count(Counted::kCalls, "ncclCommAbort");
  comm->connections.drop();
  report();
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->later;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* number) {
  *number = comm->num_ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t how, ncclComm_t comm, cudaStream_t) {
  const ncclResult_t result = collective(comm, kAllReduce, from, count, to, count, type, count);
  if (result != ncclSuccess) return result;
  count_ring(*comm, kAllReduce, count * bytes_of(type), /*passes=*/2);
  sum_kept(*comm, from, to, count * bytes_of(type), type, how);
  return result;
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t) {
  return collective(comm, kBroadcast, from, comm->rank == root ? count : 0, to, count, type, count,
                    root);
}
ncclResult_t ncclBcast(void* tensor, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(tensor, tensor, count, type, root, comm, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                        int root, ncclComm_t comm, cudaStream_t) {
  return collective(comm, kReduce, from, count, to, comm->rank == root ? count : 0, type, count,
                    root);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  const ncclResult_t result =
      collective(comm, kAllGather, from, count, to, count * comm->num_ranks, type, count);
  if (result != ncclSuccess) return result;
  count_ring(*comm, kAllGather, count * bytes_of(type) * comm->num_ranks);
  gather_kept(*comm, from, to, count * bytes_of(type));
  return result;
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  const size_t all = count * comm->num_ranks;
  const ncclResult_t result = collective(comm, kReduceScatter, from, all, to, count, type, count);
  if (result == ncclSuccess) count_ring(*comm, kReduceScatter, all * bytes_of(type));
  return result;
}
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t) {
  const size_t all = count * comm->num_ranks;
  const ncclResult_t result = collective(comm, kAllToAll, from, all, to, all, type, count);
  if (result == ncclSuccess) count_messages(*comm, kAllToAll, count * bytes_of(type));
  return result;
}
ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t) {
  const size_t all = comm->rank == root ? count * comm->num_ranks : 0;
  return collective(comm, kGather, from, count, to, all, type, count, root);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t) {
  const auto size = static_cast<int64_t>(count * bytes_of(type));
  const ncclResult_t result = begin(*comm, kSend, from, size, nullptr, 0);
  if (result != ncclSuccess) return result;
  if (!comm->is_near[peer]) null_cuda::count(Counted::kCardBytes, name_of_kind(kSend), size);
  return compared(*comm, comm->shared->pairs[comm->rank][peer],
                  {++comm->sent[peer], kSend, type, peer, comm->rank, count});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  const auto size = static_cast<int64_t>(count * bytes_of(type));
  if (!in_memory(*comm, to, size)) {
    return failed(ncclInvalidArgument, "null NCCL: a tensor is not in the memory of its GPU");
  }
  if (!comm->is_near[peer]) null_cuda::count(Counted::kCardBytes, "Recv", size);
  return compared(*comm, comm->shared->pairs[peer][comm->rank],
                  {++comm->received[peer], kSend, type, comm->rank, comm->rank, count});
}

}  // extern "C"
