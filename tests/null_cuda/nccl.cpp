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
  int rank = 0, num_ranks = 1, device = 0;
  Shared* shared = nullptr;
  uint64_t num_collectives = 0;
  uint64_t sent[kMostRanks] = {}, received[kMostRanks] = {};
  ncclResult_t later = ncclSuccess;  // error that the network reports later
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
    case ncclInt8:
    case ncclUint8:
      return 1;
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
    default:
      return 1;
  }
}

/// True if this process has reached the collective in the variable, RANK:NUMBER.
bool named_by(const char* variable, uint64_t number) {
  const char* const asked = std::getenv(variable);
  const char* const own = std::getenv("RANK");
  int rank = 0;
  unsigned long long wanted = 0;
  return asked != nullptr && std::sscanf(asked, "%d:%llu", &rank, &wanted) == 2 &&
         (rank < 0 || rank == (own != nullptr ? std::atoi(own) : 0)) && wanted == number;
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
  Shared* const shared = open_shared(id.internal);
  if (shared == nullptr || num_ranks > kMostRanks || !join(shared, id.internal, num_ranks)) {
    return failed(ncclSystemError, "null NCCL: not all ranks have come");
  }
  *comm = new ncclComm;
  (*comm)->rank = rank;
  (*comm)->num_ranks = num_ranks;
  (*comm)->device = current_device();
  (*comm)->shared = shared;
  return ncclSuccess;
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
  delete comm;  // the ranks' shared memory stays: a host may still ask for a sum
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t /*comm*/) {  // threads may still ask for its errors
  count(Counted::kCalls, "ncclCommAbort");
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
  if (result == ncclSuccess) sum_kept(*comm, from, to, count * bytes_of(type), type, how);
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
  if (result == ncclSuccess) gather_kept(*comm, from, to, count * bytes_of(type));
  return result;
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  return collective(comm, kReduceScatter, from, count * comm->num_ranks, to, count, type, count);
}
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t) {
  const size_t all = count * comm->num_ranks;
  return collective(comm, kAllToAll, from, all, to, all, type, count);
}
ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t) {
  const size_t all = comm->rank == root ? count * comm->num_ranks : 0;
  return collective(comm, kGather, from, count, to, all, type, count, root);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t) {
  const ncclResult_t result = begin(*comm, kSend, from, count * bytes_of(type), nullptr, 0);
  if (result != ncclSuccess) return result;
  return compared(*comm, comm->shared->pairs[comm->rank][peer],
                  {++comm->sent[peer], kSend, type, peer, comm->rank, count});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  if (!in_memory(*comm, to, count * bytes_of(type))) {
    return failed(ncclInvalidArgument, "null NCCL: a tensor is not in the memory of its GPU");
  }
  return compared(*comm, comm->shared->pairs[peer][comm->rank],
                  {++comm->received[peer], kSend, type, comm->rank, comm->rank, count});
}

}  // extern "C"
