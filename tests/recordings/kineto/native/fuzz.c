/* Runs the scanner over cases from a file: each a length (4 bytes, little endian) and its text, in a block of
 * exactly that size and a NUL, so that a sanitizer sees every read beyond it. Blocks of tables begin with one row
 * and double, so that it sees every write beyond them, too. */
#include <stdio.h>

#include "scan.c"

#ifndef FIRST_ROWS
#define FIRST_ROWS 1
#endif
static int64_t *blocks[NUM_TABLES], rooms[NUM_TABLES], counts[NUM_TABLES + 1];

static int make_room(int table, int64_t rows)
{
    free(blocks[table]);
    rooms[table] = rows;
    return !!(blocks[table] = malloc((size_t)(rows * TABLES[table].count) * sizeof(int64_t)));
}

int main(int count, char **words)
{
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    State *state = scan_new();
    unsigned char head[4];
    long cases = 0, read = 0;
    if (!file || !state)
        return 2;
    for (int table = 0; table < NUM_TABLES; table++)
        if (!make_room(table, FIRST_ROWS))
            return 2;
    while (fread(head, 1, 4, file) == 4) {
        size_t length = head[0] | head[1] << 8 | head[2] << 16 | (size_t)head[3] << 24;
        char *text = malloc(length + 1);
        int64_t found;
        if (!text || fread(text, 1, length, file) != length)
            return 2;
        text[length] = 0;
        for (;;) {
            memset(counts, 0, sizeof counts);
            found = scan(state, text, (int64_t)length, blocks, rooms, counts);
            if (found != NO_ROOM)
                break;
            for (int table = 0; table < NUM_TABLES; table++)
                if (counts[table] == rooms[table] && !make_room(table, 2 * rooms[table]))
                    return 2;
        }
        read += found >= 0;
        cases++;
        free(text);
    }
    printf("%ld of %ld read\n", read, cases);
    for (int table = 0; table < NUM_TABLES; table++)
        free(blocks[table]);
    scan_free(state);
    fclose(file);
    return 0;
}
