// Records a process's GPU work: kernels, copies, and the host's waits. CUDA loads it into any
// program:
//   CUDA_INJECTION64_PATH=liblaunches.so LAUNCHES=records.tsv program ...
// Writes one line per record, with times in ns of CUPTI's clock; launches.py makes tables from
// them.
#include <cupti.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
std::FILE* file = nullptr;
std::mutex mutex;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *max_records = 0;
}

void write(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      std::fprintf(file, "kernel\t%llu\t%llu\t%u\t%u\t%s\n",
                   static_cast<unsigned long long>(kernel->start),
                   static_cast<unsigned long long>(kernel->end), kernel->streamId,
                   static_cast<unsigned>(kernel->gridX) * static_cast<unsigned>(kernel->gridY) *
                       static_cast<unsigned>(kernel->gridZ),
                   kernel->name);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      std::fprintf(file, "copy\t%llu\t%llu\t%u\t%llu\t%d\n",
                   static_cast<unsigned long long>(copy->start),
                   static_cast<unsigned long long>(copy->end), copy->streamId,
                   static_cast<unsigned long long>(copy->bytes), copy->copyKind);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      std::fprintf(file, "memset\t%llu\t%llu\t%u\t%llu\t-\n",
                   static_cast<unsigned long long>(set->start),
                   static_cast<unsigned long long>(set->end), set->streamId,
                   static_cast<unsigned long long>(set->bytes));
      break;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto* wait = reinterpret_cast<const CUpti_ActivitySynchronization*>(record);
      std::fprintf(
          file, "wait\t%llu\t%llu\t%u\t0\t%d\n", static_cast<unsigned long long>(wait->start),
          static_cast<unsigned long long>(wait->end), wait->streamId, static_cast<int>(wait->type));
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) write(record);
  std::fflush(file);
  std::free(buffer);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* path = std::getenv("LAUNCHES");
  file = path ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return 0;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                          CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION}) {
    cuptiActivityEnable(kind);
  }
  // The program may end by _exit, which runs no handlers.
  std::thread([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
  }).detach();
  return 1;
}
