// NVML (libnvidia-ml.so.1), the driver's library for GPU properties, whose header no package
// contains: GPUs are present, without links between them.
namespace {
enum Result { kSuccess = 0, kNotSupported = 3 };
}

extern "C" {

int nvmlInit_v2() { return kSuccess; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* /*bus*/, void** device) {
  static int any;
  *device = &any;
  return kSuccess;
}
int nvmlDeviceGetGpuFabricInfoV(void* /*device*/, void* /*info*/) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetComputeRunningProcesses(void* /*device*/, unsigned* number, void* /*infos*/) {
  *number = 0;
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}

}  // extern "C"
