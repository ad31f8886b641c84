/* A site that is a C program. It trains nothing: every step adds a fixed pattern to the parameters,
 * so that whoever does the same has the same values.
 *
 * usage: c_site COORDINATOR ID TENSORS STATE [SAVE_EVERY]
 *
 * TENSORS is a file with a line for each tensor of the model: its name and its sizes. It begins
 * from the state in the file STATE if there is one. With SAVE_EVERY, it saves one, with its
 * parameters, before it is ready and every so many steps. C_SITE_CA, C_SITE_CERT and C_SITE_KEY are
 * PEM files, C_SITE_OUTPUT is a folder for events and metrics. Prints "saved STEP", "step STEP"
 * and, last, "done STEP SUMMARY". */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/site/causeway_site.h"

enum { kMaxTensors = 1000, kMaxRank = 2, kTokens = 64, kDraws = 2 };

static causeway_error error;
static causeway_site* site;
static float* parameters[kMaxTensors]; /* By tensor. */
static int64_t sizes[kMaxTensors];
static int64_t tensor_count;

static void check(int code) {
  if (code == CAUSEWAY_OK) return;
  fprintf(stderr, "c_site: %d: %s\n", code, error.message);
  exit(code == CAUSEWAY_INVALID_ARGUMENT || code == CAUSEWAY_FAILED_PRECONDITION ? 2 : 1);
}

static void on_signal(int number) {
  (void)number;
  causeway_site_drain(site);
}

/* Between the parameters and the arena, of one fragment or all. */
static void copy(int32_t fragment, int into_arena) {
  const causeway_range* ranges = NULL;
  int64_t count = 0;
  check(causeway_site_ranges(site, fragment, &ranges, &count, &error));
  float* const arena = causeway_site_arena(site);
  for (int64_t i = 0; i < count; ++i) {
    float* const values = parameters[ranges[i].tensor] + ranges[i].tensor_offset;
    float* const there = arena + ranges[i].arena_offset;
    const size_t bytes = (size_t)ranges[i].count * sizeof(float);
    memcpy(into_arena ? there : values, into_arena ? values : there, bytes);
  }
}

static void train(int64_t step) {
  for (int64_t t = 0; t < tensor_count; ++t) {
    for (int64_t i = 0; i < sizes[t]; ++i) {
      parameters[t][i] += 1e-3f * (float)((step * 31 + t * 7 + i) % 17 - 8);
    }
  }
}

static void save(const char* path, int64_t step) {
  void* state = NULL;
  size_t bytes = 0;
  char temporary[4096];
  check(causeway_site_save(site, &state, &bytes, &error));
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  FILE* const file = fopen(temporary, "wb");
  if (file == NULL || fwrite(&bytes, sizeof bytes, 1, file) != 1 ||
      fwrite(state, 1, bytes, file) != bytes) {
    exit(1);
  }
  for (int64_t t = 0; t < tensor_count; ++t) {
    if (fwrite(parameters[t], sizeof(float), (size_t)sizes[t], file) != (size_t)sizes[t]) exit(1);
  }
  if (fclose(file) != 0 || rename(temporary, path) != 0) exit(1);
  causeway_state_free(state);
  check(causeway_site_saved(site, step, &error));
  printf("saved %lld\n", (long long)step);
}

/* The state in the file, with the parameters read; NULL if there is no file. */
static void* restore(const char* path, size_t* bytes) {
  FILE* const file = fopen(path, "rb");
  *bytes = 0;
  if (file == NULL) return NULL;
  if (fread(bytes, sizeof *bytes, 1, file) != 1) exit(1);
  void* const state = malloc(*bytes);
  if (state == NULL || fread(state, 1, *bytes, file) != *bytes) exit(1);
  for (int64_t t = 0; t < tensor_count; ++t) {
    if (fread(parameters[t], sizeof(float), (size_t)sizes[t], file) != (size_t)sizes[t]) exit(1);
  }
  fclose(file);
  return state;
}

static void read_tensors(const char* path, causeway_tensor* tensors) {
  static char names[kMaxTensors][256];
  static int64_t shapes[kMaxTensors][kMaxRank];
  char line[512];
  FILE* const file = fopen(path, "r");
  if (file == NULL) exit(2);
  while (tensor_count < kMaxTensors && fgets(line, sizeof line, file) != NULL) {
    long long rows = 0;
    long long cols = 0;
    const int read = sscanf(line, "%255s %lld %lld", names[tensor_count], &rows, &cols);
    if (read < 2) continue;
    shapes[tensor_count][0] = rows;
    shapes[tensor_count][1] = cols;
    sizes[tensor_count] = read == 3 ? rows * cols : rows;
    parameters[tensor_count] = calloc((size_t)sizes[tensor_count], sizeof(float));
    tensors[tensor_count].name = names[tensor_count];
    tensors[tensor_count].shape = shapes[tensor_count];
    tensors[tensor_count].rank = read - 1;
    ++tensor_count;
  }
  fclose(file);
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  const int64_t save_every = argc > 5 ? atoll(argv[5]) : 0;
  static causeway_tensor tensors[kMaxTensors];
  read_tensors(argv[3], tensors);
  causeway_site_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.coordinator = argv[1];
  options.id = argv[2];
  options.device = "none";
  options.data_slot = 1;
  options.tls_ca = getenv("C_SITE_CA");
  options.tls_cert = getenv("C_SITE_CERT");
  options.tls_key = getenv("C_SITE_KEY");
  options.output = getenv("C_SITE_OUTPUT");
  size_t bytes = 0;
  void* const state = restore(argv[4], &bytes);
  check(causeway_site_join(&options, tensors, tensor_count, state, bytes, &site, &error));
  free(state);
  signal(SIGTERM, on_signal);

  const int32_t* fragments = NULL;
  int32_t count = 0;
  check(causeway_site_changed(site, &fragments, &count, &error));
  for (int32_t i = 0; i < count; ++i) copy(fragments[i], 0);
  causeway_site_orders orders;
  memset(&orders, 0, sizeof orders);
  orders.size = sizeof orders;
  causeway_site_info info;
  info.size = sizeof info;
  check(causeway_site_describe(site, &info, &error));
  if (save_every > 0 && !info.restored) save(argv[4], 0);
  check(causeway_site_ready(site, &error));
  for (;;) {
    check(causeway_site_wait(site, -1, &orders, &error));
    if (orders.finished || orders.drain) break;
    if (orders.anew) copy(CAUSEWAY_ALL, 0);
    if (!orders.go) continue; /* A site that saves states would save one now. */
    train(orders.next_step);
    check(causeway_site_next(site, &fragments, &count, &error));
    for (int32_t i = 0; i < count; ++i) copy(fragments[i], 1);
    check(causeway_site_report(site, 5.0 / (double)orders.next_step, NAN, &error));
    check(causeway_site_step(site, kTokens, kDraws, &fragments, &count, &error));
    for (int32_t i = 0; i < count; ++i) copy(fragments[i], 0);
    printf("step %lld\n", (long long)orders.next_step);
    if (save_every > 0 && orders.next_step % save_every == 0) save(argv[4], orders.next_step);
  }
  if (orders.drain) {
    check(causeway_site_leave(site, CAUSEWAY_DRAINED, NULL, &error));
  } else {
    check(causeway_site_next(site, &fragments, &count, &error));
    for (int32_t i = 0; i < count; ++i) copy(fragments[i], 1);
    check(causeway_site_finish(site, &fragments, &count, &error));
    for (int32_t i = 0; i < count; ++i) copy(fragments[i], 0);
    check(causeway_site_leave(site, CAUSEWAY_FINISHED, NULL, &error));
  }
  char* json = NULL;
  check(causeway_site_summary(site, &json, &error));
  printf("done %lld %s", (long long)orders.step, json);
  causeway_text_free(json);
  causeway_site_free(site);
  return 0;
}
