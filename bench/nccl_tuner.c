/* A tuner plugin for NCCL (interface v4) that reads lab's file, where NVIDIA's example is not at hand:
 *     cc -shared -fPIC -O2 -o nccl_tuner.so bench/nccl_tuner.c
 * The first row whose collective, size and number of ranks fit gets cost 0, and its channels are set. It logs
 * what it applied in the words of NVIDIA's example. Source of the interface: NVIDIA/nccl, plugins/tuner. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
enum { INFO = 3, TUNING = 0x40, OK = 0, SYSTEM_ERROR = 2, MOST_ROWS = 256 };

static const char *collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
static const char *algorithms[] = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
static const char *protocols[] = {"ll", "ll128", "simple"};

struct row { int collective, algorithm, protocol, channels, nodes, ranks; unsigned long long low, high; };
struct state { size_t ranks, nodes; logger log; int count; struct row rows[MOST_ROWS]; };

static int word(const char *text, const char **words, int count) {
  for (int i = 0; i < count; i++)
    if (strcmp(text, words[i]) == 0) return i;
  return -1;
}

static int parse(const char *line, struct row *row) {
  char collective[32], algorithm[32], protocol[32];
  if (sscanf(line, "%31[^,],%llu,%llu,%31[^,],%31[^,],%d,%d,%d", collective, &row->low, &row->high, algorithm,
             protocol, &row->channels, &row->nodes, &row->ranks) != 8) return 0;
  row->collective = word(collective, collectives, 5);
  row->algorithm = word(algorithm, algorithms, 7);
  row->protocol = word(protocol, protocols, 3);
  return row->collective >= 0 && row->algorithm >= 0 && row->protocol >= 0;
}

static int init(size_t ranks, size_t nodes, logger log, void **context) {
  const char *path = getenv("NCCL_TUNER_CONFIG_FILE");
  struct state *state = calloc(1, sizeof *state);
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[256];
  if (!state || !file) { free(state); if (file) fclose(file); return SYSTEM_ERROR; }
  state->ranks = ranks, state->nodes = nodes, state->log = log;
  while (state->count < MOST_ROWS && fgets(line, sizeof line, file))
    if (line[0] != '#' && parse(line, &state->rows[state->count])) state->count++;
  fclose(file);
  *context = state;
  return OK;
}

static int fits(const struct row *row, const struct state *state, int collective, size_t bytes) {
  return row->collective == collective && bytes >= row->low && bytes <= row->high &&
         (row->ranks == -1 || (size_t)row->ranks == state->ranks) &&
         (row->nodes == -1 || (size_t)row->nodes == state->nodes);
}

static int get_coll_info(void *context, int collective, size_t bytes, int pipe_ops, float **table, int num_algorithms,
                         int num_protocols, int registered, int *channels) {
  struct state *state = context;
  float *costs = (float *)table;
  for (int i = 0; i < state->count; i++) {
    const struct row *row = &state->rows[i];
    if (!fits(row, state, collective, bytes)) continue;
    if (row->algorithm >= num_algorithms || row->protocol >= num_protocols) return OK;
    float *cost = &costs[row->algorithm * num_protocols + row->protocol];
    if (*cost < 0) return OK; /* not usable here: NCCL's own choice stays */
    *cost = 0;
    if (row->channels != -1) *channels = row->channels;
    if (state->log)
      state->log(INFO, TUNING, __FILE__, __LINE__,
                 "TUNER/ExamplePlugin: Applied config for collType=%s, bytes=%zu, pipeOps=%d, regBuff=%d: algo=%s, "
                 "proto=%s, channels=%d (nodes=%zu, ranks=%zu)",
                 collectives[collective], bytes, pipe_ops, registered, algorithms[row->algorithm],
                 protocols[row->protocol], *channels, state->nodes, state->ranks);
    return OK;
  }
  return OK;
}

static int destroy(void *context) {
  free(context);
  return OK;
}

const struct {
  const char *name;
  int (*init)(size_t, size_t, logger, void **);
  int (*get_coll_info)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*destroy)(void *);
} ncclTunerPlugin_v4 = {"lab", init, get_coll_info, destroy};
