#include "apps/gpu/cublaslt.h"

#if __has_include(<cublasLt.h>)  // otherwise bench gemm says so
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace kvasir::gpu_program {
namespace {

constexpr const char* kFile = "libcublasLt.so.13";

std::vector<std::string> places() {
  std::vector<std::string> found;
  if (const char* given = std::getenv("KVASIR_CUBLASLT"); given != nullptr) found.push_back(given);
  found.push_back(kFile);
  for (const char* folder :
       {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu"}) {
    found.push_back(std::string(folder) + "/" + kFile);
  }
  return found;
}

void must_lt(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + " failed with status " + std::to_string(status));
}

}  // namespace

struct CublasLt::Library {
  void* handle = nullptr;
  std::string path;
  cublasLtHandle_t lt = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get = nullptr;

  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) throw std::runtime_error(path + " has no " + name);
  }
};

CublasLt::CublasLt() : library_(std::make_unique<Library>()) {
  std::string looked;
  for (const std::string& place : places()) {
    library_->handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_->handle != nullptr) {
      library_->path = place;
      break;
    }
    looked += looked.empty() ? place : ", " + place;
  }
  if (library_->handle == nullptr)
    throw std::runtime_error("no cuBLASLt: name its file in KVASIR_CUBLASLT; looked for " + looked);
  Library& l = *library_;
  l.find(l.create, "cublasLtCreate");
  l.find(l.destroy, "cublasLtDestroy");
  l.find(l.version, "cublasLtGetVersion");
  l.find(l.matmul, "cublasLtMatmul");
  l.find(l.desc_create, "cublasLtMatmulDescCreate");
  l.find(l.desc_set, "cublasLtMatmulDescSetAttribute");
  l.find(l.layout_create, "cublasLtMatrixLayoutCreate");
  l.find(l.preference_create, "cublasLtMatmulPreferenceCreate");
  l.find(l.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  l.find(l.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  l.find(l.config_get, "cublasLtMatmulAlgoConfigGetAttribute");
  must_lt(l.create(&l.lt), "cublasLtCreate");
}

CublasLt::~CublasLt() {
  if (library_->lt != nullptr) library_->destroy(library_->lt);
}

std::string CublasLt::path() const {
  return library_->path;
}
size_t CublasLt::version() const {
  return library_->version();
}

std::unique_ptr<CublasLt::Plan> CublasLt::plan(int64_t features, int64_t k, int64_t rows, int wanted) const {
  return std::make_unique<Plan>(*library_, features, k, rows, wanted);
}

struct CublasLt::Plan::State {
  const Library* library = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms;
};

CublasLt::Plan::Plan(const Library& l, int64_t features, int64_t k, int64_t rows, int wanted)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.library = &l;
  // Its matrices are column-major: ours are their transposes.
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto f = static_cast<uint64_t>(features), depth = static_cast<uint64_t>(k),
             r = static_cast<uint64_t>(rows);
  must_lt(l.desc_create(&s.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  must_lt(l.desc_set(s.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "transposing");
  must_lt(l.layout_create(&s.w, CUDA_R_16BF, depth, f, k), "layout of weights");
  must_lt(l.layout_create(&s.x, CUDA_R_16BF, depth, r, k), "layout of rows");
  must_lt(l.layout_create(&s.y, CUDA_R_32F, f, r, features), "layout of outputs");
  cublasLtMatmulPreference_t preference = nullptr;
  must_lt(l.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const size_t workspace = kWorkspaceBytes;
  must_lt(
      l.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
      "workspace");
  s.algorithms.resize(static_cast<size_t>(wanted));
  int found = 0;
  must_lt(l.heuristic(l.lt, s.product, s.w, s.x, s.y, s.y, preference, wanted, s.algorithms.data(), &found),
          "cublasLtMatmulAlgoGetHeuristic");
  s.algorithms.resize(static_cast<size_t>(found));
}

CublasLt::Plan::~Plan() = default;

int CublasLt::Plan::algorithms() const {
  return static_cast<int>(state_->algorithms.size());
}

std::string CublasLt::Plan::describe(int algorithm) const {
  struct Named {
    const char* name;
    cublasLtMatmulAlgoConfigAttributes_t attribute;
  };
  std::string text;
  for (const Named& each : {Named{"id", CUBLASLT_ALGO_CONFIG_ID}, Named{"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
                            Named{"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID}}) {
    uint32_t value = 0;
    size_t written = 0;
    state_->library->config_get(&state_->algorithms.at(static_cast<size_t>(algorithm)).algo, each.attribute,
                                &value, sizeof value, &written);
    text += std::string(each.name) + " " + std::to_string(value) + " ";
  }
  return text + "split " + std::to_string(splits(algorithm));
}

int CublasLt::Plan::splits(int algorithm) const {
  int32_t value = 1;
  size_t written = 0;
  state_->library->config_get(&state_->algorithms.at(static_cast<size_t>(algorithm)).algo,
                              CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &value, sizeof value, &written);
  return value;
}

void CublasLt::Plan::run(int algorithm, const uint16_t* w, const uint16_t* x, float* y, void* workspace,
                         cudaStream_t stream) const {
  const State& s = *state_;
  const float one = 1, zero = 0;
  must_lt(s.library->matmul(s.library->lt, s.product, &one, w, s.w, x, s.x, &zero, y, s.y, y, s.y,
                            &s.algorithms.at(static_cast<size_t>(algorithm)).algo, workspace, kWorkspaceBytes,
                            stream),
          "cublasLtMatmul");
}

}  // namespace kvasir::gpu_program
#endif
